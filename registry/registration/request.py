"""A request to register a checkpoint: nothing of it is opened yet, so that this module imports nothing large."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Literal

from registry.checkpoint.annotations import Annotations
from registry.statistics.settings import PassSettings


@dataclass(frozen=True)
class RegistrationRequest:
    """A checkpoint to register or to check (attributes as the arguments of `Registry.add_expert`).

    Attributes:
        name: name of the expert or base model; None if the checkpoint is only checked.
        kind: expert or base.
    """

    name: str | None
    checkpoint: str | PathLike[str]
    kind: Literal["expert", "base"] = "expert"
    data: Sequence[str | PathLike[str]] = ()
    settings: PassSettings | None = None
    annotations: Annotations = field(default_factory=Annotations)
    keep_calibration: bool = False
    base: str | PathLike[str] | None = None
    allow_unrelated: bool = False
    remote_code: bool = False
    tokenizer_of: str | None = None
