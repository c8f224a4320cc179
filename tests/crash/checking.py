"""What must hold of a world: after a kill, and once the command was repeated."""

import hashlib
import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import text

import registry.maintenance.garbage
from registry import Registry
from registry.families.sites import TOKEN_COUNTS
from registry.home import Home
from registry.io.model_folder import MARKER
from registry.registration.summary_store import strays_in
from store.catalog import schema
from store.catalog.engine import make_engine
from store.catalog.tables import VERSION_TABLE, Base
from tests.conftest import files_of
from tests.crash.commands import WIDE, run
from tests.digests import digests_of

Rows = dict[str, list[dict[str, Any]]]
_RANDOM = re.compile(r"[0-9a-f]{32}(?=\.partial)|(?:(?<=/tmp)|(?<=/reg-)|(?<=merged-))[a-z0-9_]{8}")
_TIMES = ("created_at", "withdrawn_at", "purged_at", "evaluated_at", "at")
_PASSING = {"registry", "events", VERSION_TABLE}


def rows_of(home: Path) -> Rows:
    """Return every row of the catalog by table, without times; nothing where there is no catalog.

    A copy is read, so that whoever opens the catalog next finds it as it was left.
    """
    if (url := Home.locate(home).database).startswith("postgresql"):
        return _plain(_rows_in_postgresql(url))
    with TemporaryDirectory() as folder:
        for file in home.glob("catalog.sqlite*"):
            shutil.copy(file, folder)
        if not (file := Path(folder) / "catalog.sqlite").exists():
            return {}
        with closing(sqlite3.connect(file)) as connection:
            connection.row_factory = sqlite3.Row
            tables = [row["name"] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            found = {table: [dict(row) for row in connection.execute(f"SELECT * FROM {table}")] for table in tables}
    return _plain(found)


def _rows_in_postgresql(url: str) -> Rows:
    """Return every row of a catalog in PostgreSQL by table; nothing where there is no catalog."""
    engine = make_engine(url)
    try:
        if schema.current(engine) is None:
            return {}
        with engine.connect() as connection:
            tables = (*Base.metadata.tables, VERSION_TABLE)
            return {t: [dict(row) for row in connection.execute(text(f"SELECT * FROM {t}")).mappings()] for t in tables}
    finally:
        engine.dispose()


def _plain(found: Rows) -> Rows:
    """Return rows without times."""
    plain = {t: [{k: v for k, v in row.items() if k not in _TIMES} for row in rows] for t, rows in found.items()}
    for event in plain.get("events", ()):
        event.pop("digest", None)  # it is taken over the time
    return {table: sorted(rows, key=repr) for table, rows in sorted(plain.items())}


def dangling(home: Path) -> Iterator[str]:
    """Yield what is wrong with the rows of a catalog: references to nothing, arrays that are not on disk."""
    if (file := home / "catalog.sqlite").exists():
        with closing(sqlite3.connect(file)) as connection:
            yield from (
                f"integrity: {told}" for (told,) in connection.execute("PRAGMA integrity_check") if told != "ok"
            )
            yield from (f"foreign key: {row}" for row in connection.execute("PRAGMA foreign_key_check"))
    rows = rows_of(home)
    if "version_arrays" not in rows:
        return
    versions = {row["id"]: row for row in rows["versions"]}
    arrays, linked = {row["digest"] for row in rows["arrays"]}, {row["version_id"] for row in rows["version_arrays"]}
    for table in ("version_arrays", "statistics", "tags", "aliases"):
        for row in rows[table]:
            if versions.get(row["version_id"], {"state": "none"})["state"] in ("none", "purged"):
                yield f"{table}: a row of version {row['version_id']}, which is purged or not there"
    for row in rows["version_arrays"]:
        if row["digest"] not in arrays:
            yield f"version_arrays: no array {row['digest']}"
    for row in rows["aliases"]:
        if versions[row["version_id"]]["expert_id"] != row["expert_id"]:
            yield f"aliases: {row['name']} is another expert's"
    for number, row in versions.items():
        if row["state"] != "purged" and (number not in linked or row["content"] is None):
            yield f"version {number} has no arrays or no content"
    compositions = {row["digest"] for row in rows["compositions"]}
    for table in ("composition_members", "evaluations"):
        for row in rows.get(table, ()):
            if row["composition_digest"] not in compositions or row.get("version_id", 1) not in (*versions, 1):
                yield f"{table}: a row of nothing"
    for digest in compositions - {row["composition_digest"] for row in rows["composition_members"]}:
        yield f"composition {digest} has no members"


def lost(start: Path, world: Path) -> Iterator[str]:
    """Yield what `start` held and `world`, in which one command ran or was killed, does not hold byte for byte."""
    before, after = rows_of(start / "home"), rows_of(world / "home")
    now = {row["id"]: row for row in after.get("versions", ())}
    for row in before.get("versions", ()):
        found = now.get(row["id"])
        if found is None or (found["digest"], found["number"]) != (row["digest"], row["number"]):
            yield f"version {row['id']}"
        elif found["state"] != "purged" and found["content"] != row["content"]:
            yield f"content of version {row['id']}"
    needed = {row["digest"] for row in after.get("version_arrays", ())}
    for digest in sorted(needed):
        place = Path("home/arrays") / digest[:2] / digest
        if (start / place).exists() and files_of(start / place) != files_of(world / place):
            yield f"array {digest}"
    kept = {row["version_id"] for row in after.get("version_arrays", ())}
    for row in before.get("version_arrays", ()):
        if row["version_id"] in kept and row not in after["version_arrays"]:
            yield f"link {row}"
    for table in ("compositions", "composition_members", "evaluations"):
        yield from (f"{table}: {row}" for row in before.get(table, ()) if row not in after.get(table, ()))
    yield from (f"event {row}" for row in before.get("events", ()) if row not in after.get("events", ()))
    if (start / "moe").exists():
        old, place, aside = files_of(start / "moe"), world / "moe", world / ".moe.old"
        if aside.exists() and not place.exists():
            place = aside
        if not place.exists():
            yield "the composed folder"
        elif files_of(place) != old and not _is_whole(place):
            yield "a whole composed folder"


def sound(start: Path, world: Path) -> list[str]:
    """Return what does not hold of a world in which a command was killed: nothing may."""
    return [*dangling(world / "home"), *lost(start, world), *verified(world / "home")]


def verified(home: Path) -> tuple[str, ...]:
    """Return the problems that `reg verify` finds in a home that has a catalog of this program's schema."""
    if not _at_head(home) or not _has_arrays(home):
        return ()
    with Registry(home) as opened:
        return opened.verify().problems


def folders_differ(one: Path, other: Path) -> list[str]:
    """Return the names of the files in which two folders differ."""
    left, right = files_of(one), files_of(other)
    return [name for name in sorted({*left, *right}) if left.get(name) != right.get(name)]


def outcome(world: Path) -> dict[str, Any]:
    """Return what a finished command must have led to whatever happened before, having collected the garbage.

    It asserts that nothing is left, and composes all who are there once more, so that their bytes take part.
    """
    home = world / "home"
    found: dict[str, Any] = {}
    if _at_head(home) and _has_arrays(home):
        registry.maintenance.garbage.STALE_SECONDS = -1.0  # whoever was killed has ended
        with Registry(home) as opened:
            assert not list(opened.verify().problems)
            opened.gc()
            assert opened.verify().orphans == 0
            experts = opened.versions(kind="expert")
            members = [version.name for version in experts if version.name != WIDE]
            active = [version.digest for version in opened.versions()]
        for name in ("partial", "work", "merged", "cache"):
            assert files_of(home / name) == {}, f"{name} is not empty"
        assert strays_in(home / "summaries", active) == [], "summaries of no version"
        composed = {path.name: files_of(path) for path in sorted(world.iterdir()) if path.name in ("moe", "out")}
        if members:
            counts_alone = any(record.site == TOKEN_COUNTS for one in experts for record in one.statistics)
            trunk = ["--trunk", "mean"] if counts_alone else []  # regmean needs the statistics of every member
            done = run(world, ["compose", "--experts", ",".join(members), *trunk, "--force", "--out", world / "after"])
            assert done.exit_code == 0, done.output
            composed["after"] = files_of(world / "after")
        found["folders"] = {name: _hashed(files) for name, files in composed.items()}
        found["arrays"] = sorted(path.name for path in (home / "arrays").glob("??/*"))
    rows = rows_of(home)
    found["hidden"] = hidden(world)
    found["rows"] = {table: of for table, of in rows.items() if table not in _PASSING}
    found["events"] = sorted({(row["action"], row["subject"]) for row in rows.get("events", ())} - {("gc", "arrays")})
    if (world / "receipt.json").exists():
        found["receipt"] = _receipt(world)
    elif (world / "out").exists():
        found["out"] = _hashed(files_of(world / "out"))
    return json.loads(json.dumps(found, sort_keys=True))  # type: ignore[no-any-return]


def hidden(world: Path) -> list[str]:
    """Return the hidden files of a world, but for those in the system's temporary folder, which it empties itself."""
    found = [str(path.relative_to(world)) for path in world.rglob(".*")]
    return [name for name in sorted(found) if not name.startswith("tmp/")]


def signature(world: Path) -> str:
    """Return a digest of all that a later command can see of a world, but for times and random names."""
    state = hashlib.sha256(json.dumps(rows_of(world / "home"), sort_keys=True).encode())
    for path in sorted(world.rglob("*"), key=lambda path: _RANDOM.sub("", str(path))):
        name = _RANDOM.sub("", str(path.relative_to(world)))
        if not name.startswith("home/catalog.sqlite"):
            state.update(f"\n{name} {path.is_dir()}\n".encode() + (path.read_bytes() if path.is_file() else b""))
    return state.hexdigest()


def _has_arrays(home: Path) -> bool:
    return Home.locate(home).arrays_elsewhere is not None or (home / "arrays").exists()


def _at_head(home: Path) -> bool:
    rows = rows_of(home).get(VERSION_TABLE, [])
    return [row["version_num"] for row in rows] == [schema.HEAD]


def _is_whole(folder: Path) -> bool:
    files = json.loads((folder / MARKER).read_bytes())["files"]
    return bool(digests_of(files_of(folder)) == files)


def _receipt(world: Path) -> Any:
    """Return what a receipt says, but for times and the head of the log, having held it against the registry."""
    done = run(world, ["receipt", "verify", world / "receipt.json"])
    assert done.exit_code == 0, done.output
    document = json.loads((world / "receipt.json").read_bytes())
    del document["head"], document["versions"][0]["withdrawn_at"], document["versions"][0]["purged_at"]
    return document


def _hashed(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
