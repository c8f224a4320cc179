"""The catalog's schema as an administrator sees it; a catalog of an older schema cannot be opened otherwise."""

import os

from registry.home import Home
from store.arrays import ArrayStore
from store.catalog import schema
from store.catalog.engine import make_engine, place_of
from store.lock import exclusive
from store.ownership import check_unowned


def revisions(home: str | os.PathLike[str] | None = None, database: str | None = None) -> tuple[str | None, str]:
    """Return (revision of the catalog or None where there is none, revision this program works with).

    Raises:
        NotFoundError: there is no registry in the folder `home`.
    """
    place = Home.locate(home, database)
    place.check(create=False)
    engine = make_engine(place.database)
    try:
        return schema.current(engine), schema.HEAD
    finally:
        engine.dispose()


def upgrade(home: str | os.PathLike[str] | None = None, database: str | None = None) -> schema.Upgrade:
    """Bring the catalog to this program's revision, keeping a copy of an older one in SQLite beside it.

    Raises:
        SchemaError: it is newer than this program.
        ConflictError: there is no catalog, but there are arrays: theirs is elsewhere, or lost.
        StorageError: there is no space for the copy.
    """
    place = Home.locate(home, database)
    place.check(create=True)
    engine = make_engine(place.database)
    try:
        if schema.current(engine) is None:
            check_unowned(ArrayStore(place.arrays), place_of(engine))
        with exclusive(place.lock, "upgrading the catalog"):
            return schema.upgrade(engine)
    finally:
        engine.dispose()
