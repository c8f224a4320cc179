"""The root of every error that a user can meet, and errors of storage; `registry.errors` adds those of the domain."""


class RegError(Exception):
    """An error for the user: `message` says what failed on which id, `hint` is the command to type next."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class InvalidInputError(RegError, ValueError):
    """The request is wrong: correct it and repeat."""


class NotFoundError(RegError, LookupError):
    """There is no such expert, version, alias or array."""


class ConflictError(RegError):
    """The request contradicts what is registered."""


class DamagedError(RegError):
    """Stored bytes differ from what was written."""


class SchemaError(RegError):
    """The catalog's schema is older or newer than this program."""


class StorageError(RegError, OSError):
    """The disk, the bucket or the database fails: space, permissions, connection."""


def first_line(text: str, otherwise: str) -> str:
    """Return the first line of a library's message that is not blank, stripped; `otherwise` if there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), otherwise)
