"""The root of every error a user can meet, and those that storage raises.

    RegError                      what failed, and the next command to type
    ├── InvalidInputError         (ValueError)   the request is wrong: mend it and repeat
    ├── NotFoundError             (LookupError)  no such expert, version, alias or array
    ├── ConflictError                            the request contradicts what is registered
    ├── DamagedError                             stored bytes are not what was written
    ├── SchemaError                              the catalog's schema is older or newer than this program
    └── StorageError              (OSError)      the disk or the database refused: space, rights, connection

`registry.errors` adds the errors of the domain below these.
"""


class RegError(Exception):
    """Anything a user can be told: `message` says what failed on which id, `hint` what to type next."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class InvalidInputError(RegError, ValueError):
    """The request itself is wrong."""


class NotFoundError(RegError, LookupError):
    """What was named does not exist."""


class ConflictError(RegError):
    """The request contradicts what is registered."""


class DamagedError(RegError):
    """Stored bytes are not the bytes that were written."""


class SchemaError(RegError):
    """The catalog's schema is not the one this program works with."""


class StorageError(RegError, OSError):
    """The disk or the database refused."""
