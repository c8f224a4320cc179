"""Flips single bits in a small registry and in composed folders, and looks whether each is told.

    python -m tests.bitflips --flips N --seed S [--subsets M]

The registry is that of `tests.fuzz`: base models, experts, one that was purged, a soup, a SIMoE, tags, aliases,
compositions, and here an evaluation. For each flip a file is chosen (of the arrays: a chunk or a zarr.json; the
database, its write-ahead log folded in; every file of the composed folders), then a bit of it. `reg verify`, or for a
folder `reg reproduce`, must exit with 1 and show no traceback. A flip that is not told must lie in unused space: no row
of any table, no key, index or column of the schema, and no element of an array is another than before.

While the bit is flipped, the registry is composed: of the compositions that the damaged array is needed for, or of all
where the database is damaged, M (default: every one). Each must be refused, leaving nothing, or be byte for byte what
it was before.

Prints one line of JSON.
"""

import random
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

from click.testing import CliRunner

from cli.main import main as reg
from registry import Recipe, Registry
from registry.errors import DamagedError, RegError
from store.arrays import FolderArrays
from tests.conftest import files_of
from tests.fuzz.fuzz_world import SPARSE, WIDE, World
from tests.preloaded import before_forks
from tests.running import command_line, tell

EXPERTS = ("code", "law", "math")
AREAS = ("arrays", "database", "folders", "arrays", "database")
"""Where flips fall, one after another."""

Job = tuple[tuple[str, ...], str]
RECIPES: dict[str, Recipe] = {
    "default": Recipe(),
    "base": Recipe(trunk="base", router="domain-embedding"),
    "ridge": Recipe(router="ridge"),
    "ensemble": Recipe(to="ensemble"),
    "simoe": Recipe(to="simoe"),
}
WITH_BASE = ("base", "simoe")
JOBS: list[Job] = [
    *((subset, "default") for size in (1, 2, 3) for subset in combinations(EXPERTS, size)),
    *((EXPERTS, recipe) for recipe in ("base", "ridge")),
    (("code", WIDE), "ensemble"),
    (SPARSE, "simoe"),
]
"""Every composition that is tried: all subsets by the default recipe, and others."""


class Place:
    """A registry, folders composed of it, and what they are while they are whole."""

    def __init__(self, world: World) -> None:
        self.home, self.out, self.database = world.home, world.scratch / "out", world.home / "catalog.sqlite"
        self.folders = [world.composed, world.by_context, *world.later]
        with Registry(self.home) as registry:
            registry.add_expert("law", world.carried)
            made = registry.compositions()[0].digest
            registry.catalog.record_evaluation(made, "e" * 64, {"figures": {"average": 88.7}})
            needed = [(v.name, link.digest) for v in registry.versions() for link in registry.arrays_of(v)]
        self.users = {digest: {name for name, other in needed if other == digest} for _, digest in needed}
        with closing(sqlite3.connect(self.database)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.backup = self.database.read_bytes()
        self.rows_and_schema = dump(self.database)
        self.arrays = sorted(path for path in (self.home / "arrays").rglob("*") if path.is_file())
        self.expected: dict[Job, dict[str, bytes]] = {}
        for job in JOBS:
            if (refused := self.compose(job)) is not None:
                raise refused
            self.expected[job] = files_of(self.out)
            self.restore()
        assert self.cli("verify") == 0

    def files(self, area: str) -> list[Path]:
        """Return the files that a flip may fall on."""
        if area == "folders":
            return [path for folder in self.folders for path in sorted(folder.iterdir())]
        return self.arrays if area == "arrays" else [self.database]

    def jobs(self, area: str, path: Path) -> list[Job]:
        """Return the compositions that a damaged file can have a part in."""
        if area != "arrays":
            return JOBS if area == "database" else []
        users = self.users.get(path.parent.name, set())
        return [job for job in JOBS if users & {*job[0], *(["base"] if job[1] in WITH_BASE else [])}]

    def cli(self, *words: object) -> int:
        """Run `reg --home HOME WORDS` and return its exit code; a traceback or a bug in the program raises."""
        result = CliRunner().invoke(reg, ["--home", str(self.home), *map(str, words)])
        said = result.output
        unexpected = result.exception is not None and not isinstance(result.exception, SystemExit)
        if unexpected or result.exit_code not in (0, 1) or "Traceback" in said or "bug in the program" in said:
            raise AssertionError(f"reg {words[0]}: {result.exception!r} {said[-400:]}") from result.exception
        return result.exit_code

    def compose(self, job: Job) -> RegError | None:
        """Compose to `out` and return why it was refused, if it was."""
        experts, recipe = job
        shutil.rmtree(self.out, ignore_errors=True)
        try:
            with Registry(self.home) as registry:
                base = "base" if recipe in WITH_BASE else None
                registry.compose(experts, self.out, RECIPES[recipe], base=base)
        except RegError as error:
            return error
        return None

    def restore(self, database: bytes | None = None) -> None:
        """Put the database back as it was, or as it is given, and take away what composing left."""
        for suffix in ("-wal", "-shm"):
            self.database.with_name(self.database.name + suffix).unlink(missing_ok=True)
        self.database.write_bytes(self.backup if database is None else database)
        shutil.rmtree(self.out, ignore_errors=True)

    def is_unused(self, area: str, path: Path) -> bool:
        """Tell whether nothing of meaning has changed."""
        if area == "database":
            try:
                return dump(self.database) == self.rows_and_schema
            except sqlite3.Error:
                return False
        is_chunk = area == "arrays" and path.name.startswith("c.")
        return is_chunk and FolderArrays(self.home / "arrays").is_intact(path.parent.name)


def dump(database: Path) -> tuple[dict[str, list[tuple[object, ...]]], list[object]]:
    """Return every row of every table with the type of each value, and the schema as SQLite understands it.

    Raises:
        sqlite3.Error: the file is damaged.
    """
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            raise sqlite3.DatabaseError("integrity_check")
        named = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
        tables = [name for (name,) in named]
        rows: dict[str, list[tuple[object, ...]]] = {}
        schema: list[object] = [tables]
        for table in tables:
            columns = connection.execute(f'PRAGMA table_xinfo("{table}")').fetchall()
            schema.append(columns)
            schema.append(sorted(row[2:] for row in connection.execute(f'PRAGMA foreign_key_list("{table}")')))
            for index in sorted(connection.execute(f'PRAGMA index_list("{table}")').fetchall(), key=str):
                schema.append((index[1:], connection.execute(f'PRAGMA index_xinfo("{index[1]}")').fetchall()))
            quoted = ", ".join(f'quote("{column[1]}"), typeof("{column[1]}")' for column in columns)
            rows[table] = connection.execute(f'SELECT {quoted} FROM "{table}" ORDER BY rowid').fetchall()
        return rows, schema


def flip(place: Place, area: str, draw: random.Random, subsets: int | None) -> Iterator[tuple[str, str]]:
    """Flip one bit, look, and flip it back; yield what came of it, each by its kind."""
    path = draw.choice(place.files(area))
    before = path.read_bytes()
    bit = draw.randrange(len(before) * 8)
    changed = bytearray(before)
    changed[bit // 8] ^= 1 << bit % 8
    path.write_bytes(changed)
    where = f"{path.relative_to(place.home.parent)}, byte {bit // 8}, bit {bit % 8}"
    try:
        words = ("reproduce", path.parent) if area == "folders" else ("verify",)
        if place.cli(*words) == 1:
            yield "told", area
        elif place.is_unused(area, path):
            yield "unused", area
        else:
            yield "wrong", f"{where}: not told"
        jobs = place.jobs(area, path)
        for job in jobs if subsets is None else draw.sample(jobs, min(subsets, len(jobs))):
            place.restore(bytes(changed) if area == "database" else None)
            refused = place.compose(job)
            if refused is None:
                yield "compositions", "identical"
                if files_of(place.out) != place.expected[job]:
                    yield "wrong", f"{where}: {job} was composed of what is damaged"
            else:
                yield "compositions", "damaged" if isinstance(refused, DamagedError) else type(refused).__name__
                if place.out.exists() or list(place.out.parent.glob(".out*")):
                    yield "wrong", f"{where}: {job} was refused, and left something"
    except Exception as error:
        yield "wrong", f"{where}: {type(error).__name__}: {error}"
    finally:
        path.write_bytes(before)
        place.restore()


def main() -> None:
    """Do all of it."""
    given = command_line(__doc__, flips=500, seed=0, subsets=None).parse_args()
    before_forks()
    started, draw = time.monotonic(), random.Random(given.seed)
    found: dict[str, Counter[str]] = {kind: Counter() for kind in ("told", "unused", "compositions", "wrong")}
    with TemporaryDirectory(dir=given.scratch) as folder:
        place = Place(World(Path(folder)))
        for number in range(given.flips):
            for kind, what in flip(place, AREAS[number % len(AREAS)], draw, given.subsets):
                found[kind][what] += 1
    wrong = found.pop("wrong")
    figures = {"flips": given.flips, "seed": given.seed, **found, "wrong": wrong.total()}
    tell(figures | {"seconds": round(time.monotonic() - started)}, wrong)


if __name__ == "__main__":
    main()
