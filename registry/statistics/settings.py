"""Settings of the forward pass that collects an expert's statistics."""

from dataclasses import dataclass, replace

from registry.distributed import Cluster
from registry.errors import InvalidInputError
from registry.families.sites import SITES
from registry.io.dtypes import AUTO, COMPUTE_DTYPES

DEFAULT_TOKENS = 24_576
"""Calibration tokens for an expert: 96 windows of 256. A sixth of it costs 0.2 of the normalised score."""

DEFAULT_SEQ_LEN = 256  # tokens of a window


@dataclass(frozen=True)
class PassSettings:
    """Settings of a forward pass.

    Attributes:
        dtype: the dtype of the computation; `auto` is the checkpoint's own where the device computes it fast, else
            float32.
        sites: a key of `SITES`: all, those that routers need, or `counts`, which counts the tokens of a text without a
            model: then only `tokens` and `seq_len` matter, and if the expert samples the text itself, what that
            depends on.
        document_tokens: first tokens of a document that count, each such beginning a window of its own; None for
            windows of `seq_len` anywhere in the text.
        max_memory: bytes that the process may take. A model that does not fit with all its sums is read layer by layer,
            which gives the same statistics. None for the free memory.
    """

    tokens: int = DEFAULT_TOKENS
    seq_len: int = DEFAULT_SEQ_LEN
    batch_size: int = 16  # windows in a batch; every batch has this many, so that all have one shape
    device: str | None = None  # a torch device, or None for the GPU if there is one
    dtype: str = AUTO
    sites: str = "all"
    document_tokens: int | None = None
    max_memory: int | None = None

    def __post_init__(self) -> None:
        given = {"tokens": 1, "seq_len": 2, "batch_size": 1}
        for name, least in (given if self.document_tokens is None else given | {"document_tokens": 2}).items():
            if getattr(self, name) < least:
                option = f"--{name.replace('_', '-')}"
                raise InvalidInputError(
                    f"{name} is {getattr(self, name)}, the least is {least}", f"give {option} {least} or more"
                )
        if self.document_tokens is not None and self.document_tokens > self.seq_len:
            raise InvalidInputError(
                f"document_tokens is {self.document_tokens}, and a window has {self.seq_len} tokens",
                f"give --document-tokens {self.seq_len} or less, or --seq-len {self.document_tokens}",
            )
        if self.max_memory is not None and self.max_memory < 1:
            raise InvalidInputError(f"max_memory is {self.max_memory}, the least is 1", "give --max-memory 6GiB")
        if self.sites not in SITES:
            raise InvalidInputError(f"sites {self.sites!r} is not one of {', '.join(SITES)}", "choose one: --sites all")
        if self.dtype not in COMPUTE_DTYPES:
            raise InvalidInputError(
                f"dtype {self.dtype!r} is not one of {', '.join(COMPUTE_DTYPES)}", "choose one of them: --dtype float32"
            )


def on_cluster(settings: PassSettings, cluster: Cluster | None) -> PassSettings:
    """Return the settings of a pass with the device that tasks compute on, where there is a cluster."""
    return settings if cluster is None else replace(settings, device=cluster.device(settings.device))
