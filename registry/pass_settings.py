"""How the forward pass that takes an expert's statistics runs."""

from dataclasses import dataclass

from registry.dtypes import WEIGHT_DTYPES
from registry.errors import InvalidInputError

DEFAULT_TOKENS = 24_576
"""Calibration tokens for an expert: 96 windows of 256. A sixth of it costs 0.2 of the normalised score."""

DEFAULT_SEQ_LEN = 256
"""Tokens of a window."""


@dataclass(frozen=True)
class PassSettings:
    """How the forward pass runs.

    Attributes:
        tokens: calibration tokens wanted.
        seq_len: tokens in a window.
        batch_size: windows in a batch; every batch has this many, so that all have one shape.
        device: a torch device, or None for the GPU if there is one.
        dtype: what the model computes in, or None for the checkpoint's own.
    """

    tokens: int = DEFAULT_TOKENS
    seq_len: int = DEFAULT_SEQ_LEN
    batch_size: int = 16
    device: str | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("tokens", 1), ("seq_len", 2), ("batch_size", 1)):
            if getattr(self, name) < least:
                option = f"--{name.replace('_', '-')}"
                raise InvalidInputError(
                    f"{name} is {getattr(self, name)}, the least is {least}", f"give {option} {least} or more"
                )
        if self.dtype is not None and self.dtype not in WEIGHT_DTYPES:
            raise InvalidInputError(
                f"dtype {self.dtype!r} is none of {', '.join(WEIGHT_DTYPES)}", "choose one of them: --dtype float32"
            )
