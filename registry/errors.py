"""Errors of the domain, derived from the root and the storage errors of `store.errors`."""

from store.errors import ConflictError as ConflictError
from store.errors import DamagedError as DamagedError
from store.errors import InvalidInputError as InvalidInputError
from store.errors import NotFoundError as NotFoundError
from store.errors import RegError as RegError
from store.errors import SchemaError as SchemaError
from store.errors import StorageError as StorageError


class CheckpointError(InvalidInputError):
    """The checkpoint cannot be registered."""


class UnsupportedFamilyError(CheckpointError):
    """No native mixture-of-experts architecture carries this model exactly."""


class CalibrationError(InvalidInputError):
    """There is no token to collect statistics on, or the model's activations are not finite."""


class ClusterError(RegError):
    """The nodes of a Ray cluster cannot do the work: none can be reached, they differ, or a task lost its process."""


class IncompatibleError(InvalidInputError):
    """The members cannot be composed with each other."""


class OutputError(InvalidInputError):
    """The output folder cannot be written."""


class SignatureError(RegError):
    """There is no signature, it is of other bytes or by a key that is not allowed, or a key cannot sign."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that says something, or its class if the message is empty."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    told = [line for line in lines if not line.endswith(":")]
    return next(iter(told or lines), type(error).__name__)


def is_foreign(error: BaseException) -> bool:
    """Tell whether an error is a library's failure, not an interrupt; panics of Rust libraries are not an Exception."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
