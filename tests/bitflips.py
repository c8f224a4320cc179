"""Flips single bits in a small registry and in composed folders, and looks whether each is told.

    python -m tests.bitflips --flips N --seed S [--subsets M]

The registry has a base model, three experts, one that was purged, tags, aliases, compositions, an evaluation. For each
flip a file is chosen (of the arrays: a chunk or a zarr.json; the database, its write-ahead log folded in; every file of
four composed folders), then a bit of it. `reg verify`, or for a folder `reg reproduce`, must exit with 1 and show no
traceback. A flip that is not told must lie in unused space: no row of any table, no key, index or column of the schema,
and no element of an array is another than before.

While the bit is flipped, the registry is composed: of the compositions that the damaged array is needed for, or of all
where the database is damaged, M (default: every one). Each must be refused, leaving nothing, or be byte for byte what
it was before.

Prints one line of JSON.
"""

import argparse
import json
import random
import shutil
import sqlite3
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from click.testing import CliRunner

from cli.main import main as reg
from registry import EnsembleRecipe, PassSettings, Recipe, Registry
from registry.errors import DamagedError, RegError
from store.arrays import FolderArrays
from tests.conftest import files_of
from tests.models import make_model, save_checkpoint, sentences, train_tokenizer, write_jsonl

EXPERTS = ("code", "law", "math")
SETTINGS = PassSettings(tokens=128, seq_len=32, batch_size=4)
AREAS = ("arrays", "arrays", "database", "database", "folders")
"""Where a flip falls, as often as it is named here."""

Job = tuple[tuple[str, ...], str]
RECIPES = {
    "default": Recipe(),
    "base": Recipe(trunk="base", router="domain-embedding"),
    "ridge": Recipe(router="ridge"),
}
JOBS: list[Job] = [
    *((subset, "default") for size in (1, 2, 3) for subset in combinations(EXPERTS, size)),
    *((EXPERTS, recipe) for recipe in RECIPES if recipe != "default"),
]
"""Every composition that is tried: all subsets by the default recipe, and all experts by the others."""


@dataclass
class Found:
    """What came of the flips.

    Attributes:
        told: area → flips that were told.
        unused: area → flips that were not, and changed nothing of meaning.
        compositions: refused as damaged, refused otherwise, identical.
        wrong: what should not be; one line each.
    """

    told: Counter[str] = field(default_factory=Counter)
    unused: Counter[str] = field(default_factory=Counter)
    compositions: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Place:
    """A registry, folders composed of it, and what they are while they are whole."""

    def __init__(self, root: Path) -> None:
        self.home, self.out = root / "home", root / "out"
        self.folders = [root / name for name in ("mixture", "dense", "ensemble", "ridge")]
        self._make(root)
        self.database = self.home / "catalog.sqlite"
        with Registry(self.home) as registry:
            needed = [(v.name, link.digest) for v in registry.versions() for link in registry.arrays_of(v)]
        self.users = {digest: {name for name, other in needed if other == digest} for _, digest in needed}
        self._fold_in()
        self.backup = self.database.read_bytes()
        self.rows, self.schema = dump(self.database)
        self.arrays = sorted(path for path in (self.home / "arrays").rglob("*") if path.is_file())
        self.expected: dict[Job, dict[str, bytes]] = {}
        for job in JOBS:
            if (refused := self.compose(job)) is not None:
                raise refused
            self.expected[job] = files_of(self.out)
            self.restore()
        assert self.cli("verify") == 0

    def _make(self, root: Path) -> None:
        tokenizer = train_tokenizer()
        with Registry(self.home) as registry:
            registry.add_base("base", save_checkpoint(make_model("llama", 100), root / "base", tokenizer))
            for number, name in enumerate((*EXPERTS, "german"), start=1):
                folder = save_checkpoint(make_model("llama", 100 + number), root / name, tokenizer)
                data = [write_jsonl(root / f"{name}.jsonl", sentences(name, 20))]
                registry.add_expert(
                    name,
                    folder,
                    data=data,
                    settings=SETTINGS,
                    tags={"team": f"{name}s"},
                    license="mit",
                    alias="stable",
                    keep_calibration=True,
                )
            registry.opt_out("german", purge=True)
            made = registry.compose(EXPERTS, self.folders[0])
            registry.compose(["code", "math"], self.folders[1], Recipe(to="dense"))
            registry.compose(["code", "law"], self.folders[2], EnsembleRecipe())
            registry.compose(["law", "math"], self.folders[3], RECIPES["ridge"])
            registry.catalog.record_evaluation(made.digest, "e" * 64, {"figures": {"average": 88.7}})
        self._fold_in()

    def _fold_in(self) -> None:
        with closing(sqlite3.connect(self.home / "catalog.sqlite")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def files(self, area: str) -> list[Path]:
        """Return the files that a flip may fall on."""
        if area == "folders":
            return [path for folder in self.folders for path in sorted(folder.iterdir())]
        return self.arrays if area == "arrays" else [self.database]

    def jobs(self, area: str, path: Path) -> list[Job]:
        """Return the compositions that a damaged file can have a part in."""
        if area == "folders":
            return []
        users = self.users.get(path.parent.name, {*EXPERTS, "base"})
        return [job for job in JOBS if users & {*job[0], *(["base"] if job[1] == "base" else [])}]

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
                registry.compose(experts, self.out, RECIPES[recipe])
        except RegError as error:
            return error
        return None

    def restore(self) -> None:
        """Put the database back as it was, and take away what composing left."""
        for suffix in ("-wal", "-shm"):
            self.database.with_name(self.database.name + suffix).unlink(missing_ok=True)
        self.database.write_bytes(self.backup)
        shutil.rmtree(self.out, ignore_errors=True)

    def is_unused(self, area: str, path: Path) -> bool:
        """Tell whether nothing of meaning has changed."""
        if area == "database":
            try:
                return dump(self.database) == (self.rows, self.schema)
            except sqlite3.Error:
                return False
        return (
            area == "arrays"
            and path.name.startswith("c.")
            and FolderArrays(self.home / "arrays").is_intact(path.parent.name)
        )


def dump(database: Path) -> tuple[dict[str, list[tuple[object, ...]]], list[object]]:
    """Return every row of every table with the type of each value, and the schema as SQLite understands it.

    Raises:
        sqlite3.Error: the file is damaged.
    """
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            raise sqlite3.DatabaseError("integrity_check")
        tables = [
            row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
        ]
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


def flip(place: Place, draw: random.Random, found: Found, subsets: int | None) -> None:
    """Flip one bit, look, and flip it back."""
    area = draw.choice(AREAS)
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
            found.told[area] += 1
        elif place.is_unused(area, path):
            found.unused[area] += 1
        else:
            found.wrong.append(f"{where}: not told")
        jobs = place.jobs(area, path)
        for job in jobs if subsets is None else draw.sample(jobs, min(subsets, len(jobs))):
            if area == "database":
                _forget_log(place, bytes(changed))
            refused = place.compose(job)
            if refused is None:
                found.compositions["identical"] += 1
                if files_of(place.out) != place.expected[job]:
                    found.wrong.append(f"{where}: {job} was composed of what is damaged")
            else:
                found.compositions["damaged" if isinstance(refused, DamagedError) else type(refused).__name__] += 1
                if place.out.exists() or list(place.out.parent.glob(".out*")):
                    found.wrong.append(f"{where}: {job} was refused, and left something")
    except Exception as error:
        found.wrong.append(f"{where}: {type(error).__name__}: {error}")
    finally:
        path.write_bytes(before)
        place.restore()


def _forget_log(place: Place, changed: bytes) -> None:
    for suffix in ("-wal", "-shm"):
        place.database.with_name(place.database.name + suffix).unlink(missing_ok=True)
    place.database.write_bytes(changed)


def run(root: Path, flips: int, seed: int, subsets: int | None = None) -> Found:
    """Flip `flips` bits, one at a time."""
    place, draw, found = Place(root), random.Random(seed), Found()
    for _ in range(flips):
        flip(place, draw, found, subsets)
    return found


def main() -> None:
    """Do all of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bitflips")
    parser.add_argument("--flips", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--subsets", type=int, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    memory = Path("/dev/shm")
    started = time.monotonic()
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        found = run(Path(folder), arguments.flips, arguments.seed, arguments.subsets)
    for line in found.wrong:
        print(line)
    figures = {
        "flips": arguments.flips,
        "seed": arguments.seed,
        "told": dict(found.told),
        "unused": dict(found.unused),
        "compositions": dict(found.compositions),
        "wrong": len(found.wrong),
        "seconds": round(time.monotonic() - started),
    }
    print(json.dumps(figures))
    if found.wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
