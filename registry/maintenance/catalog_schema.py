"""Inspection and upgrade of the catalog's schema, for catalogs that are too old to be opened."""

import os

from registry.home import Home
from store.arrays import ArrayStore
from store.catalog import schema
from store.catalog.engine import make_engine, place_of
from store.catalog.locks import locks_of
from store.ownership import check_unowned


def revisions(home: str | os.PathLike[str] | None = None, database: str | None = None) -> tuple[str | None, str]:
    """Return the catalog's revision (None if it does not exist) and the revision this program works with.

    Raises:
        NotFoundError: the folder `home` holds no registry.
    """
    location = Home.locate(home, database)
    location.check(create=False)
    engine = make_engine(location.database)
    try:
        return schema.current(engine), schema.HEAD
    finally:
        engine.dispose()


def upgrade(home: str | os.PathLike[str] | None = None, database: str | None = None) -> schema.Upgrade:
    """Upgrade the catalog to this program's revision; a copy of an older SQLite database is kept beside it.

    Raises:
        SchemaError: the catalog is newer than this program.
        ConflictError: arrays exist but no catalog: their catalog is elsewhere, or lost.
        StorageError: the copy cannot be written.
    """
    location = Home.locate(home, database)
    location.check(create=True)
    engine = make_engine(location.database)
    try:
        if schema.current(engine) is None:
            check_unowned(ArrayStore(location.arrays), place_of(engine))
        with locks_of(engine, location.lock).hold("upgrading the catalog"):
            return schema.upgrade(engine)
    finally:
        engine.dispose()
