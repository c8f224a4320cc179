"""The catalog in PostgreSQL against the catalog in SQLite: the same work, in turn, on the same arrays.

The server stands on this machine, is reached through a socket, and flushes to disk as a server does by default (unlike
that of the tests). Listing is a page of 50 of `VERSIONS` versions; a version is added to as many; registering and
composing are whole commands of Python with tiny experts.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import gettempdir

from benchmarks import startup
from benchmarks.alternating import Comparison, Setup, alternate, run
from benchmarks.first_output import TINY
from benchmarks.random_experts import fill as fill_experts
from benchmarks.random_experts import make_checkpoint
from registry import Recipe, Registry
from store.catalog import ArrayLink, Catalog, NewVersion
from store.catalog.copying import copy
from tests import postgres

ROUNDS = 7
TIMES = 20
"""How often one round repeats what is done in milliseconds."""

DURABLE = ("fsync=on", "synchronous_commit=on", "full_page_writes=on")


def measure(scratch: Path) -> list[Comparison]:
    """Return the comparisons."""
    server = os.environ.get(postgres.URL_VARIABLE) or postgres.start(os.getpid(), DURABLE, Path(gettempdir()))
    large = Places(scratch / "large", server)
    startup.fill(large.home)
    tiny, names = fill_experts(scratch / "tiny", 2, **TINY)
    return [*of_catalogs(large), *of_registries(Places(tiny.parent, server, tiny), names, scratch)]


class Places:
    """A home with its catalog in SQLite, and a copy of the catalog in a schema of a server."""

    def __init__(self, folder: Path, server: str, home: Path | None = None) -> None:
        self.home = home or folder / "home"
        self.server = server
        self.sqlite = f"sqlite:///{self.home / 'catalog.sqlite'}"

    def postgresql(self) -> str:
        """Return the URL of a copy of the catalog."""
        postgres.make_schema(self.server, name := f"bench_{next(_numbers)}_{os.getpid()}")
        url = postgres.schema_url(self.server, name)
        copy(self.sqlite, url, self.home / "lock")
        return url


_numbers = count()


def of_catalogs(places: Places) -> list[Comparison]:
    """Return the comparisons of single transactions, on a catalog of many versions."""
    _log_all(places.sqlite, places.home)
    found, lock = [], places.home / "lock"
    with closing(Catalog(places.postgresql(), lock)) as ours, closing(Catalog(places.sqlite, lock)) as other:
        actions: dict[str, Callable[[Catalog], object]] = {
            "listing a page": lambda catalog: catalog.versions(limit=50, offset=5000),
            "listing by tag": lambda catalog: catalog.versions(tags={"domain": "domain 7"}, limit=50),
            "a page of the log": lambda catalog: catalog.events(limit=50),
            "adding a version": add,
        }
        for name, action in actions.items():
            claim = f"catalog in PostgreSQL against SQLite: {name}, {TIMES} times"
            sides = partial(_repeat, action, ours), partial(_repeat, action, other)
            found.append(alternate(claim, sides[0], sides[1], ROUNDS, note=f"{startup.VERSIONS:,} versions"))
    return found


def of_registries(places: Places, names: list[str], scratch: Path) -> list[Comparison]:
    """Return the comparisons of registering and composing."""
    url, out, numbers = places.postgresql(), scratch / "moe", count()
    checkpoints = [make_checkpoint(scratch / f"late-{number}", 20 + number) for number in range(2)]

    def register(database: str) -> None:
        with Registry(places.home, database=database) as registry:
            registry.add_base(f"late-{next(numbers)}", checkpoints[0])

    def compose(database: str) -> None:
        with Registry(places.home, database=database) as registry:
            registry.compose(names, out, Recipe())

    empty = partial(shutil.rmtree, out, True)
    return [
        alternate(
            f"catalog in PostgreSQL against SQLite: {name}, tiny experts",
            partial(action, url),
            partial(action, places.sqlite),
            ROUNDS,
            setup=Setup(before_ours=empty, before_other=empty),
        )
        for name, action in (("`add_base`", register), ("`compose`", compose))
    ]


def add(catalog: Catalog) -> None:
    """Add a version with 32 arrays of its own, under the registry's lock."""
    number = next(_numbers)
    arrays = tuple(
        ArrayLink("mlp", f"layers.{n}.mlp", f"{number:032x}{n:032x}", "bfloat16", (4096, 4096), 2**25)
        for n in range(32)
    )
    with catalog.lock("registering"):
        catalog.add_version(NewVersion(f"added-{number}", "expert", f"{number:064x}", {"n": number}, 6, arrays, (), {}))


def _repeat(action: Callable[[Catalog], object], catalog: Catalog) -> None:
    for _ in range(TIMES):
        action(catalog)


def _log_all(url: str, home: Path) -> None:
    """Let the log have an event for some of the versions that were written straight into the tables."""
    with closing(Catalog(url, home / "lock")) as catalog:
        for version in catalog.versions(limit=60):
            catalog.set_alias(version, "stable")


if __name__ == "__main__":
    run(measure)
