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

from sqlalchemy import inspect, text

import registry.maintenance.garbage
from registry import Registry
from registry.families.sites import TOKEN_COUNTS
from registry.home import Home
from registry.io.model_folder import MARKER
from registry.registration.summary_store import strays_in
from store.catalog import schema
from store.catalog.engine import make_engine
from store.catalog.tables import VERSION_TABLE
from tests.conftest import files_of
from tests.crash.commands import run
from tests.digests import digests_of
from tests.tiny import WIDE

Rows = dict[str, list[dict[str, Any]]]
_RANDOM = re.compile(r"[0-9a-f]{32}(?=\.partial)|(?:(?<=/tmp)|(?<=/reg-)|(?<=merged-))[a-z0-9_]{8}")
_TIMES = ("created_at", "withdrawn_at", "purged_at", "evaluated_at", "at")
_PASSING = {"registry", "events", VERSION_TABLE}


def rows_of(home: Path) -> Rows:
    """Return every row of the catalog by table, without times; nothing where there is no catalog.

    A copy of a file is read, so that whoever opens the catalog next finds it as it was left.
    """
    with TemporaryDirectory() as folder:
        if (url := Home.locate(home).database).startswith("sqlite"):
            copies = [shutil.copy(file, folder) for file in home.glob("catalog.sqlite*")]
            url = f"sqlite:///{folder}/catalog.sqlite"
            if not copies:
                return {}
        engine = make_engine(url)
        try:
            with engine.connect() as connection:
                tables = sorted(inspect(connection).get_table_names())
                found = {t: connection.execute(text(f"SELECT * FROM {t}")).mappings().all() for t in tables}
        finally:
            engine.dispose()
    rows = {t: [{k: v for k, v in row.items() if k not in _TIMES} for row in of] for t, of in found.items()}
    for event in rows.get("events", ()):
        event.pop("digest", None)  # it is taken over the time
    return {table: sorted(of, key=repr) for table, of in rows.items()}


def dangling(home: Path) -> Iterator[str]:
    """Yield what is wrong with the rows of a catalog, of whose keys PostgreSQL takes care itself."""
    if (file := home / "catalog.sqlite").exists():
        with closing(sqlite3.connect(file)) as connection:
            yield from (
                f"integrity: {told}" for told in connection.execute("PRAGMA integrity_check") if told != ("ok",)
            )
            yield from (f"foreign key: {row}" for row in connection.execute("PRAGMA foreign_key_check"))
    rows = rows_of(home)
    if "version_arrays" not in rows:
        return
    versions = {row["id"]: row for row in rows["versions"]}
    for table in ("version_arrays", "statistics", "tags", "aliases"):
        for row in rows[table]:
            if versions[row["version_id"]]["state"] == "purged":
                yield f"{table}: a row of version {row['version_id']}, which is purged"
    for row in rows["aliases"]:
        if versions[row["version_id"]]["expert_id"] != row["expert_id"]:
            yield f"aliases: {row['name']} is another expert's"
    linked = {row["version_id"] for row in rows["version_arrays"]}
    for number, row in versions.items():
        if row["state"] != "purged" and (number not in linked or row["content"] is None):
            yield f"version {number} has no arrays or no content"
    made = {row["digest"] for row in rows["compositions"]}
    for digest in made - {row["composition_digest"] for row in rows["composition_members"]}:
        yield f"composition {digest} has no members"


def lost_rows(before: Rows, after: Rows) -> Iterator[str]:
    """Yield the versions, arrays of versions that are not purged, and events that a catalog had, and has not now."""
    now = {row["id"]: row for row in after.get("versions", ())}
    for row in before.get("versions", ()):
        found = now.get(row["id"])
        if found is None or (found["digest"], found["number"]) != (row["digest"], row["number"]):
            yield f"version {row['id']}"
        elif found["state"] != "purged" and found["content"] != row["content"]:
            yield f"content of version {row['id']}"
    kept = {row["version_id"] for row in after.get("version_arrays", ())}
    for row in before.get("version_arrays", ()):
        if row["version_id"] in kept and row not in after["version_arrays"]:
            yield f"link {row}"
    yield from (f"event {row}" for row in before.get("events", ()) if row not in after.get("events", ()))


def lost(start: Path, world: Path) -> Iterator[str]:
    """Yield what `start` held and `world`, in which one command ran or was killed, does not hold byte for byte."""
    before, after = rows_of(start / "home"), rows_of(world / "home")
    yield from lost_rows(before, after)
    for digest in sorted({row["digest"] for row in after.get("version_arrays", ())}):
        place = Path("home/arrays") / digest[:2] / digest
        if (start / place).exists() and files_of(start / place) != files_of(world / place):
            yield f"array {digest}"
    for table in ("compositions", "composition_members", "evaluations"):
        yield from (f"{table}: {row}" for row in before.get(table, ()) if row not in after.get(table, ()))
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
    if not _is_open(home):
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
    if _is_open(home):
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
    hidden = sorted(str(path.relative_to(world)) for path in world.rglob(".*"))
    found["hidden"] = [name for name in hidden if not name.startswith("tmp/")]  # which the system empties itself
    found["rows"] = {table: of for table, of in rows.items() if table not in _PASSING}
    found["events"] = sorted({(row["action"], row["subject"]) for row in rows.get("events", ())} - {("gc", "arrays")})
    if (world / "receipt.json").exists():
        found["receipt"] = _receipt(world)
    elif (world / "out").exists():
        found["out"] = _hashed(files_of(world / "out"))
    return json.loads(json.dumps(found, sort_keys=True))  # type: ignore[no-any-return]


def signature(world: Path) -> str:
    """Return a digest of all that a later command can see of a world, but for times and random names."""
    rows = rows_of(world / "home")
    for event in rows.get("events", ()):  # without the digests of rows, which are taken over their times
        event["details"] = {key: value for key, value in json.loads(event["details"]).items() if key != "rows"}
    state = hashlib.sha256(json.dumps(rows, sort_keys=True).encode())
    for path in sorted(world.rglob("*"), key=lambda path: _RANDOM.sub("", str(path))):
        name = _RANDOM.sub("", str(path.relative_to(world)))
        if not name.startswith("home/catalog.sqlite"):
            state.update(f"\n{name} {path.is_dir()}\n".encode() + (path.read_bytes() if path.is_file() else b""))
    return state.hexdigest()


def _is_open(home: Path) -> bool:
    """Tell whether a home has a catalog of this program's schema, and arrays."""
    revisions = [row["version_num"] for row in rows_of(home).get(VERSION_TABLE, [])]
    has_arrays = Home.locate(home).arrays_elsewhere is not None or (home / "arrays").exists()
    return revisions == [schema.HEAD] and has_arrays


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
