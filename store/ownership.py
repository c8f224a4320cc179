"""Ownership of arrays: the catalog and the folder of its arrays carry the same id.

A catalog treats every array that it does not know as garbage. So another catalog, named by mistake or created to
replace a lost one, must not touch the arrays.
"""

from store.arrays import ArrayStore
from store.catalog import Catalog
from store.errors import ConflictError

_HINT = "name the right catalog with --database or REG_DATABASE; if it is lost, restore it from a backup"


def check_owner(catalog: Catalog, store: ArrayStore) -> None:
    """Check that the arrays of `store` belong to `catalog` (ConflictError: they belong to another).

    Arrays written by early versions carry no id: they belong to the catalog if it knows any of them.
    """
    owner = store.owner()
    if owner == catalog.id:
        return
    if next(store.digests(), None) is None:
        if owner is None and catalog.exists and catalog.referenced():
            raise ConflictError(
                f"no array of {catalog.place} is below {store.place}",
                "name where they are with --arrays or REG_ARRAYS; if they are lost, restore them from a backup, or "
                f"write {catalog.id} to the file registry there and add each expert again",
            )
        return
    if owner is None:
        known = catalog.referenced() | set(catalog.unreferenced())
        if any(digest in known for digest in store.digests()) or store.owner() == catalog.id:
            return  # another process may have stored the first arrays since
    raise _foreign(store, owner, catalog.place)


def claim(catalog: Catalog, store: ArrayStore) -> None:
    """Check the owner (errors as `check_owner`), and note its id there; the caller holds the registry's lock."""
    check_owner(catalog, store)
    if store.owner() != catalog.id:
        store.set_owner(catalog.id)


def check_unowned(store: ArrayStore, url: str) -> None:
    """Check that there are no arrays yet where the database `url` is to get a catalog (ConflictError: there are)."""
    if next(store.digests(), None) is not None:
        raise _foreign(store, store.owner(), f"{url}, which holds no catalog")


def _foreign(store: ArrayStore, owner: str | None, url: str) -> ConflictError:
    known = f" (its id is {owner})" if owner else " (none of them is known here)"
    return ConflictError(f"the arrays below {store.place} belong to another catalog{known}, not to {url}", _HINT)
