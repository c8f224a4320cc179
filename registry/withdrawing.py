"""Opting out: withdrawal, purge, and the garbage that crashes leave."""

from collections.abc import Sequence
from dataclasses import dataclass

from store.arrays import ArrayStore
from store.catalog import Catalog, CompositionRecord, VersionRecord
from store.ownership import check_owner, claim


@dataclass(frozen=True)
class OptOut:
    """What opting out did.

    Attributes:
        versions: those withdrawn, as they are now.
        compositions: those ever made from any of them: folders that still hold it wherever they are.
        purged: its arrays were deleted.
        deleted_arrays: how many arrays went, those of earlier crashes included.
        deleted_bytes: what they took on disk.
        shared_arrays: arrays that stay because another version needs them.
    """

    versions: tuple[VersionRecord, ...]
    compositions: tuple[CompositionRecord, ...]
    purged: bool
    deleted_arrays: int = 0
    deleted_bytes: int = 0
    shared_arrays: int = 0


@dataclass(frozen=True)
class Garbage:
    """Arrays on disk, or in the catalog, that no version needs."""

    digests: tuple[str, ...]
    nbytes: int


def opt_out(catalog: Catalog, store: ArrayStore, versions: Sequence[VersionRecord], *, purge: bool) -> OptOut:
    """Withdraw `versions` from every later composition; with `purge` delete what only they needed.

    The caller holds the registry's lock.

    Raises:
        ConflictError: the arrays belong to another catalog.
    """
    claim(catalog, store)
    catalog.withdraw(versions)
    compositions = tuple(catalog.compositions(versions))  # after withdrawal none is added
    if not purge:
        return OptOut(tuple(catalog.reread(versions)), compositions, purged=False)
    own = {link.digest for version in versions for link in catalog.arrays_of(version)}
    catalog.purge(versions)
    shared = len(own & catalog.referenced())
    garbage = collect_garbage(catalog, store, dry_run=False)
    withdrawn = tuple(catalog.reread(versions))
    return OptOut(withdrawn, compositions, True, len(garbage.digests), garbage.nbytes, shared)


def collect_garbage(catalog: Catalog, store: ArrayStore, *, dry_run: bool) -> Garbage:
    """Delete every array that no version needs, and return them; with `dry_run` only return them.

    The caller holds the registry's lock, so that nothing that is being registered is taken for garbage.

    Raises:
        ConflictError: the arrays belong to another catalog, so that they only seem to be garbage.
    """
    (check_owner if dry_run else claim)(catalog, store)
    needed = catalog.referenced()
    garbage = sorted({digest for digest in store.digests() if digest not in needed} | set(catalog.unreferenced()))
    if dry_run:
        return Garbage(tuple(garbage), sum(store.disk_bytes(digest) for digest in garbage))
    freed = sum(store.delete(digest) for digest in garbage)
    if garbage:
        catalog.forget_unreferenced(len(garbage), freed)
    return Garbage(tuple(garbage), freed)
