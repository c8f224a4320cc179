"""Opting out: withdrawal, purge, and arrays that no version needs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from registry.home import Home
from registry.io.work_dirs import remove
from registry.maintenance.garbage import Garbage, clear, empty_cache, forget_summaries
from store.arrays import ArrayStore
from store.catalog import Catalog, CompositionRecord, PushRecord, VersionRecord
from store.ownership import check_owner, claim


@dataclass(frozen=True)
class OptOut:
    """What opting out did.

    Attributes:
        versions: those concerned, as they are now.
        withdrew: those of them that were active until now.
        deleted: those of them that were not purged until now.
        compositions: those ever made from any of them: their folders still hold it, wherever they are.
        purged: its arrays are deleted.
        pushes: where they, and compositions made from them, were pushed to on the Hub.
        deleted_digests: arrays that went, those of earlier crashes included.
        deleted_bytes: what they took on disk.
        shared_digests: arrays that stay because another version needs them.
        cleared: what else was deleted with the arrays, by path: what interrupted commands left in the home, and copies
            of the catalog that upgrades made.
        remains: what could not be deleted yet, one line each: what other processes hold.
    """

    versions: tuple[VersionRecord, ...]
    withdrew: tuple[str, ...]
    deleted: tuple[str, ...]
    compositions: tuple[CompositionRecord, ...]
    purged: bool
    pushes: tuple[PushRecord, ...] = ()
    deleted_digests: tuple[str, ...] = ()
    deleted_bytes: int = 0
    shared_digests: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()
    remains: tuple[str, ...] = ()

    @property
    def deleted_arrays(self) -> int:
        """How many arrays went."""
        return len(self.deleted_digests)

    @property
    def shared_arrays(self) -> int:
        """How many arrays stay."""
        return len(self.shared_digests)


def opt_out(
    home: Home, catalog: Catalog, store: ArrayStore, versions: Sequence[VersionRecord], *, purge: bool
) -> OptOut:
    """Withdraw `versions` from every later composition; with `purge` delete what only they needed.

    Interrupted anywhere, it is finished by the same again. The caller holds the registry's lock.

    Raises:
        ConflictError: the arrays belong to another catalog.
        StorageError: something cannot be deleted.
    """
    claim(catalog, store)
    before = catalog.reread(versions)
    withdrew = tuple(version.ref for version in before if version.state == "active")
    catalog.withdraw(versions)
    empty_cache(home)  # after withdrawal nothing of theirs is put there
    forget_summaries(home, catalog)  # nor here
    compositions = tuple(catalog.compositions(versions))  # after withdrawal none is added
    pushes = tuple(catalog.pushes(pushable(versions, compositions)))
    if not purge:
        return OptOut(tuple(catalog.reread(versions)), withdrew, (), compositions, purged=False, pushes=pushes)
    deleted = tuple(version.ref for version in before if version.state != "purged")
    own = {link.digest for version in versions for link in catalog.arrays_of(version)}
    cleared, remains = clear(home, before)  # by their weights, whose digest the catalog is about to forget
    catalog.purge(versions, {digest: store.disk_bytes(digest) for digest in own})
    shared = tuple(sorted(own & catalog.referenced()))
    garbage = collect_garbage(catalog, store, dry_run=False)
    for path in catalog.backups():
        remove(path)
        cleared.append(path)
    if kept := catalog.erase():
        remains.append(kept)
    now = tuple(catalog.reread(versions))
    return OptOut(
        now,
        withdrew,
        deleted,
        compositions,
        True,
        pushes,
        garbage.digests,
        garbage.nbytes,
        shared,
        tuple(map(str, cleared)),
        tuple(remains),
    )


def pushable(versions: Iterable[VersionRecord], compositions: Iterable[CompositionRecord]) -> set[str]:
    """Return what pushes of versions, and of compositions made from them, are logged under."""
    return {version.ref for version in versions} | {composition.digest for composition in compositions}


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
