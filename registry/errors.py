"""The errors of the domain, below the root and the storage errors of `store.errors`.

RegError
└── InvalidInputError        (ValueError)
    ├── CheckpointError      a folder is no checkpoint that can be registered
    │   └── UnsupportedFamilyError   no host carries it exactly
    ├── CalibrationError     no token to take statistics on, or activations that are not finite
    ├── IncompatibleError    members that cannot stand in one composition
    └── OutputError          the folder to write cannot be written
"""

from store.errors import (
    ConflictError,
    DamagedError,
    InvalidInputError,
    NotFoundError,
    RegError,
    SchemaError,
    StorageError,
)

__all__ = [
    "CalibrationError",
    "CheckpointError",
    "ConflictError",
    "DamagedError",
    "IncompatibleError",
    "InvalidInputError",
    "NotFoundError",
    "OutputError",
    "RegError",
    "SchemaError",
    "StorageError",
    "UnsupportedFamilyError",
    "first_line",
    "is_foreign",
]


class CheckpointError(InvalidInputError):
    """A folder is no checkpoint that can be registered."""


class UnsupportedFamilyError(CheckpointError):
    """No native mixture-of-experts architecture carries this model exactly."""


class CalibrationError(InvalidInputError):
    """There is no token to take statistics on, or the model's activations on them are not finite."""


class IncompatibleError(InvalidInputError):
    """Members that cannot stand in one composition."""


class OutputError(InvalidInputError):
    """The folder to write to cannot be written."""


def first_line(error: BaseException) -> str:
    """Return the first line of what another library says, or the kind of error where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def is_foreign(error: BaseException) -> bool:
    """Tell whether another library failed, and nobody stopped the program. Rust's panics are no Exception."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
