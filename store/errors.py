"""The root of every error that a user can meet, and the errors of storage.

    RegError                      what failed, and the next command to type
    ├── InvalidInputError         (ValueError)   the request is wrong: correct it and repeat
    ├── NotFoundError             (LookupError)  no such expert, version, alias or array
    ├── ConflictError                            the request contradicts what is registered
    ├── DamagedError                             stored bytes differ from what was written
    ├── SchemaError                              the catalog's schema is older or newer than this program
    └── StorageError              (OSError)      the disk or the database fails: space, permissions, connection

`registry.errors` adds the errors of the domain below these.
"""


class RegError(Exception):
    """An error for the user: `message` says what failed on which id, `hint` is the command to type next."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class InvalidInputError(RegError, ValueError):
    """The request is wrong."""


class NotFoundError(RegError, LookupError):
    """The named object does not exist."""


class ConflictError(RegError):
    """The request contradicts what is registered."""


class DamagedError(RegError):
    """Stored bytes differ from what was written."""


class SchemaError(RegError):
    """The catalog's schema is older or newer than this program."""


class StorageError(RegError, OSError):
    """The disk or the database cannot be read or written."""


def first_line(text: str, otherwise: str) -> str:
    """Return the first line of a library's message that is not blank, stripped; `otherwise` if there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), otherwise)
