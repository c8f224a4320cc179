"""Inspection and upgrade of the catalog's schema, for catalogs that are too old to be opened; copies of catalogs."""

import os

from registry.home import Home
from registry.workspace import PathLike
from store.catalog import copying, schema
from store.catalog.engine import file_of, make_engine, place_of
from store.catalog.locks import locks_of
from store.ownership import check_unowned


def revisions(
    home: PathLike | None = None, database: str | None = None, arrays: PathLike | None = None
) -> tuple[str | None, str]:
    """Return the catalog's revision, None without one, and this program's (NotFoundError: `home` holds no registry)."""
    location = Home.locate(home, database, arrays)
    location.check(create=False)
    engine = make_engine(location.database)
    try:
        return schema.current(engine), schema.HEAD
    finally:
        engine.dispose()


def upgrade(
    home: PathLike | None = None, database: str | None = None, arrays: PathLike | None = None
) -> schema.Upgrade:
    """Upgrade the catalog to this program's revision; a copy of an older SQLite database is kept beside it.

    (SchemaError: it is newer; StorageError: the copy cannot be written; ConflictError: there are arrays of another.)
    """
    location = Home.locate(home, database, arrays)
    location.check(create=True)
    engine = make_engine(location.database)
    try:
        if schema.current(engine) is None:
            check_unowned(location.open_arrays(), place_of(engine))
        with locks_of(engine, location.lock).hold("upgrading the catalog"):
            return schema.upgrade(engine)
    finally:
        engine.dispose()


def copy(source: str, target: str, home: str | os.PathLike[str] | None = None) -> copying.Copied:
    """Copy a catalog to another database under the lock of its registry (errors as `copying.copy`)."""
    engine, location = make_engine(source), Home.locate(home, source)
    engine.dispose()
    file = file_of(engine)
    if file is not None and (home is None or not location.path.is_dir()):
        location = Home.locate(file.parent, source)
    return copying.copy(source, target, location.lock)
