"""Whose arrays these are: the catalog and the folder of its arrays carry the same id.

A catalog takes every array that it does not know for garbage. So a catalog that is not that of the arrays, named by
mistake or made anew where one was lost, must not touch them.
"""

from typing import TYPE_CHECKING

from store.errors import ConflictError

if TYPE_CHECKING:
    from store.arrays import ArrayStore
    from store.catalog import Catalog

_HINT = "name the right catalog with --database or REG_DATABASE; if it is lost, restore it from a backup"


def check_owner(catalog: "Catalog", store: "ArrayStore") -> None:
    """Check that the arrays of `store` are those of `catalog`.

    Arrays without an id are from before there was one: they are the catalog's if it knows any of them.

    Raises:
        ConflictError: they belong to another catalog.
    """
    owner = store.owner()
    if owner == catalog.id or next(store.digests(), None) is None:
        return
    if owner is None:
        known = catalog.referenced() | set(catalog.unreferenced())
        if any(digest in known for digest in store.digests()) or store.owner() == catalog.id:
            return  # another process may have stored the first arrays since
    raise _foreign(store, owner, catalog.place)


def claim(catalog: "Catalog", store: "ArrayStore") -> None:
    """Check that the arrays of `store` are those of `catalog`, and make them carry its id.

    The caller holds the registry's lock.

    Raises:
        ConflictError: they belong to another catalog.
    """
    check_owner(catalog, store)
    if store.owner() != catalog.id:
        store.set_owner(catalog.id)


def check_unowned(store: "ArrayStore", place: str) -> None:
    """Check that a catalog may be made anew in the database `place`: there are no arrays yet.

    Raises:
        ConflictError: there are; their catalog is elsewhere, or lost.
    """
    if next(store.digests(), None) is not None:
        raise _foreign(store, store.owner(), f"{place}, which holds no catalog")


def _foreign(store: "ArrayStore", owner: str | None, place: str) -> ConflictError:
    known = f" (its id is {owner})" if owner else " (none of them is known here)"
    return ConflictError(f"the arrays below {store.root} belong to another catalog{known}, not to {place}", _HINT)
