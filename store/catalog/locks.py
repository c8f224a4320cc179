"""The registry's lock: a file beside a SQLite catalog, an advisory lock in PostgreSQL. There, outputs have locks too.

PostgreSQL binds the lock to a connection of its own. A lost connection loses the lock, and the process may not know. So
every writing transaction locks the row of the registry, then asks whether the lock is still held; and whoever gets the
lock waits for that row once, before reading what is referenced. A writer that lost its lock has thus either committed
before the next holder reads, or is refused. The same protects deletions: see `Transactions.holding`.
"""

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from store import lock
from store.actor import actor
from store.catalog.engine import place_of, translated
from store.catalog.postgresql import arguments
from store.errors import ConflictError

REGISTRY = "registry"
"""The name of the lock of a catalog; the key in PostgreSQL is a digest over the schema and this name."""

_NAME_BYTES = 63  # maximum length of an application name in PostgreSQL
_STATEMENT_SECONDS = 1.0
"""Seconds of one statement that waits. Its snapshot sees what a purge deletes, and the purge waits until none does."""

_KEEPALIVES = "SET tcp_keepalives_idle = 60; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 6"
"""The server ends the session, and with it the lock, two minutes after its machine is gone."""

_THIS_LOCK = """l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.classid::bigint = :high AND l.objid::bigint = :low
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


class Locks:
    """The registry's lock: a file, which the system releases when its process ends. Writers exclude one another."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def hold(self, action: str, *, shared: bool = False) -> AbstractContextManager[None]:
        """Hold the lock (as `Catalog.lock`)."""
        return lock.exclusive(self._path, action)

    def hold_output(self, url: str) -> AbstractContextManager[None]:
        """Hold the lock of an output that machines share; where the catalog is a file, there is none."""
        return nullcontext()

    def check(self) -> None:
        """Check that this thread still holds its locks (ConflictError: a connection was lost)."""


class AdvisoryLocks(Locks):
    """Advisory locks of PostgreSQL, each on a connection of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._mine = threading.local()

    @contextmanager
    def hold(self, action: str, *, shared: bool = False) -> Iterator[None]:
        """Hold the lock until the block ends or the connection is lost."""
        with self._acquired(REGISTRY, action, shared=shared) as (connection, key):
            # Wait until no transaction of a writer that lost the lock is open, where there is a catalog.
            with translated(self._engine):
                if connection.execute(text("SELECT to_regclass('registry')")).scalar_one() is not None:
                    connection.exec_driver_sql("SELECT id FROM registry FOR UPDATE").close()
            self._held.append((connection, key))
            try:
                yield
            finally:
                self._held.remove((connection, key))

    @contextmanager
    def hold_output(self, url: str) -> Iterator[None]:
        """Hold the lock of a place until the block ends or the connection is lost."""
        with self._acquired(f"output {url}", f"composing into {url}"):
            yield

    @contextmanager
    def _acquired(self, name: str, action: str, *, shared: bool = False) -> Iterator[tuple[Connection, int]]:
        """Acquire the lock of a name, and yield its connection and key."""
        # Each statement is a transaction of its own: an open one would hold back vacuum.
        application = f"reg, {actor()}: {action}".encode("ascii", "replace")[:_NAME_BYTES].decode()
        url, options = self._engine.url, {"poolclass": NullPool, "isolation_level": "AUTOCOMMIT"}
        with translated(self._engine):
            connection = create_engine(url, connect_args=arguments(url, application), **options).connect()
        try:
            with translated(self._engine):
                key = _key(connection, name)
                if not _acquire(connection, key, shared=shared):
                    what = "the lock of the registry" if name == REGISTRY else "its lock"
                    raise ConflictError(
                        f"{action}: {_holders(connection, key)} has held {what} in "
                        f"{place_of(self._engine)} for {lock.WAIT_SECONDS:.0f} s",
                        "repeat when it has ended",
                    )
            try:
                yield connection, key
            finally:
                with suppress(SQLAlchemyError):  # a lost connection has released it
                    connection.execute(text("SELECT pg_advisory_unlock_all()"))
        finally:
            with suppress(SQLAlchemyError):
                connection.close()
            connection.engine.dispose()

    def check(self) -> None:
        """Ask the server, over each lock's own connection, whether that connection holds it."""
        for connection, key in self._held:
            try:
                held = connection.execute(
                    text(f"SELECT count(*) FROM pg_locks l WHERE l.pid = pg_backend_pid() AND {_THIS_LOCK}"),
                    _halves(key),
                ).scalar_one()
            except SQLAlchemyError:
                held = 0
            if not held:
                raise ConflictError(
                    f"the connection that held the lock of the registry in {place_of(self._engine)} was lost; "
                    "nothing of this step was recorded",
                    "repeat the command: what was stored is found again",
                )

    @property
    def _held(self) -> list[tuple[Connection, int]]:
        if not hasattr(self._mine, "held"):
            self._mine.held = []
        found: list[tuple[Connection, int]] = self._mine.held
        return found


def locks_of(engine: Engine, path: Path) -> Locks:
    """Return the registry's lock: that of the database where it has one, else the file `path`."""
    return AdvisoryLocks(engine) if engine.dialect.name == "postgresql" else Locks(path)


def _acquire(connection: Connection, key: int, *, shared: bool) -> bool:
    function = "pg_advisory_lock_shared" if shared else "pg_advisory_lock"
    connection.exec_driver_sql(_KEEPALIVES)
    connection.exec_driver_sql("SET statement_timeout = 0")
    end = time.monotonic() + lock.WAIT_SECONDS
    while (left := end - time.monotonic()) > 0:
        connection.exec_driver_sql(f"SET lock_timeout = {max(1, int(1000 * min(left, _STATEMENT_SECONDS)))}")
        try:
            connection.execute(text(f"SELECT {function}(:key)"), {"key": key})
        except SQLAlchemyError as error:
            if getattr(getattr(error, "orig", None), "sqlstate", None) != "55P03":
                raise
        else:
            connection.exec_driver_sql(f"SET lock_timeout = {int(lock.WAIT_SECONDS * 1000)}")
            return True
    return False


def _holders(connection: Connection, key: int) -> str:
    query = f"""SELECT a.application_name, a.client_addr
        FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE {_THIS_LOCK}"""
    rows = connection.execute(text(query), _halves(key)).all()
    found = [f"{name or 'a session'}{f' from {address}' if address else ''}" for name, address in rows]
    return f"another process ({'; '.join(found)})" if found else "another process"


def _key(connection: Connection, name: str) -> int:
    schema = connection.execute(text("SELECT current_schema()")).scalar_one()
    digest = hashlib.sha256(f"reg {schema} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _halves(key: int) -> dict[str, int]:
    unsigned = key % 2**64
    return {"high": unsigned >> 32, "low": unsigned & 0xFFFFFFFF}
