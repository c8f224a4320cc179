"""Connections to PostgreSQL, and its errors as errors that a user can act on."""

from typing import Any

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError

from store.errors import ConflictError, RegError, StorageError, first_line

CONNECT_SECONDS = 10  # seconds to wait for the server to answer
WAIT_SECONDS = 60  # seconds that a statement waits for a row or table that another transaction has locked
_LIBPQ = ("psycopg", "psycopg2", "psycopg_async")
_ALIVE = {"keepalives": 1, "keepalives_idle": 60, "keepalives_interval": 10, "keepalives_count": 6}
"""So that a line through a firewall stays open, and one to a lost server is noticed."""


class LostTransactionError(StorageError):
    """A transaction lost to another and was undone: a deadlock, or a conflict of snapshots. It may be repeated."""


_AGAIN = "repeat the command: what was stored is found again"
_ADMIN = "correct --database or REG_DATABASE, or ask the database's administrator"

_STATES: dict[str, tuple[str, str]] = {
    "25006": (
        "the database is read-only, as a standby is: reading works, writing does not",
        "name the primary server with --database or REG_DATABASE",
    ),
    "28P01": ("the server refuses the password", "put the password into ~/.pgpass or PGPASSWORD"),
    "28000": ("the server refuses this user", _ADMIN),
    "3D000": ("the database does not exist", "createdb NAME (on the server)"),
    "3F000": ("the schema does not exist", "CREATE SCHEMA NAME (in psql)"),
    "40001": ("another transaction was in the way, several times", _AGAIN),
    "40P01": ("another transaction was in the way, several times", _AGAIN),
    "42501": (
        "the database's user lacks a permission",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO the user (reading needs SELECT alone)",
    ),
    "53100": ("the disk of the database's server is full", "free some space there, then repeat the command"),
    "53200": ("the database's server is out of memory", _AGAIN),
    "53300": ("the database has too many connections", "end some, or raise max_connections; then repeat the command"),
    "55P03": (f"other processes have locked it for {WAIT_SECONDS} s", "repeat when they have ended"),
    "57P01": ("the server ended the connection", _AGAIN),
    "57P02": ("the server crashed", _AGAIN),
    "57P03": ("the server starts, stops or recovers", "repeat the command in a while"),
    "57014": ("the server cancelled the statement", _AGAIN),
}
"""SQLSTATE → what it means, and what to do."""

_WORDS = (
    ("password authentication failed", "28P01"),
    ("no password supplied", "28P01"),
    ("too many clients", "53300"),
    ("too many connections", "53300"),
    ("connection slots are reserved", "53300"),
    ("remaining connection slots", "53300"),
    ("is starting up", "57P03"),
    ("is shutting down", "57P03"),
    ("not yet accepting connections", "57P03"),
    ("no pg_hba.conf entry", "28000"),
    ("authentication failed", "28000"),
)
"""Parts of messages at the connection, which carry no SQLSTATE."""


def named(url: URL) -> URL:
    """Return `url` with the driver that the extra installs where it names none."""
    return url.set(drivername="postgresql+psycopg") if url.drivername in ("postgresql", "postgres") else url


def arguments(url: URL, application: str = "reg") -> dict[str, Any]:
    """Return the arguments of a connection: how long to wait, and under which name the server lists it."""
    if url.get_backend_name() != "postgresql" or url.get_driver_name() not in _LIBPQ:
        return {}
    found = {"connect_timeout": CONNECT_SECONDS, "application_name": application, **_ALIVE}
    return {key: value for key, value in found.items() if key not in url.query}


def configure(connection: Any, _record: Any) -> None:
    """Let statements of a new connection wait for locks no longer than `WAIT_SECONDS`."""
    cursor = connection.cursor()
    cursor.execute(f"SET lock_timeout = '{WAIT_SECONDS}s'")
    cursor.close()
    connection.commit()


def explained(error: DBAPIError, place: str, password: str | None) -> RegError:
    """Return what a database error means for the catalog at `place`, with any password hidden."""
    cause = first_line(str(error.orig), "no reason given")
    cause = cause.replace(password, "***") if password else cause
    state = _state(error)
    if state in _STATES:
        meaning, hint = _STATES[state]
        kind = LostTransactionError if state in ("40001", "40P01") else StorageError
        return kind(f"the catalog {place} cannot be used: {meaning} ({cause})", hint)
    if error.connection_invalidated:
        return ConflictError(f"the connection to the catalog {place} was lost ({cause})", _AGAIN)
    if error.statement is None:  # there was no connection yet
        return StorageError(
            f"the catalog {place} cannot be used: its server does not answer ({cause})",
            "start the server, or correct --database or REG_DATABASE; reg config shows the URL",
        )
    return StorageError(f"the catalog {place} cannot be used: {cause}", "correct the cause, then repeat the command")


def _state(error: DBAPIError) -> str | None:
    found = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    if found is not None:
        return str(found)
    cause = str(error.orig)
    if 'database "' in cause and "does not exist" in cause:
        return "3D000"
    if 'role "' in cause and "does not exist" in cause:
        return "28000"
    return next((state for words, state in _WORDS if words in cause), None)
