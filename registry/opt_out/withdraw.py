"""Opting out: withdrawal, purge, and arrays that no version needs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from registry.io.work_dirs import remove
from registry.maintenance.garbage import clear, delete_summaries, delete_unreferenced, empty_cache
from registry.workspace import Workspace
from store.catalog import CompositionRecord, PushRecord, VersionRecord
from store.ownership import claim


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


def withdraw(workspace: Workspace, versions: Sequence[VersionRecord], *, purge: bool) -> OptOut:
    """Withdraw `versions` from every later composition; with `purge` delete what only they needed.

    Interrupted anywhere, it is finished by the same again. The caller holds the registry's lock.

    Raises:
        ConflictError: the arrays belong to another catalog.
        StorageError: something cannot be deleted.
    """
    home, catalog, store = workspace.home, workspace.catalog, workspace.arrays
    claim(catalog, store)
    before = catalog.reread(versions)
    withdrew = tuple(version.ref for version in before if version.state == "active")
    catalog.withdraw(versions)
    empty_cache(home)  # after withdrawal nothing of theirs is put there
    delete_summaries(home, catalog)  # nor here
    compositions = tuple(catalog.compositions(versions))  # after withdrawal none is added
    pushes = tuple(catalog.pushes(pushable(versions, compositions)))
    if not purge:
        return OptOut(tuple(catalog.reread(versions)), withdrew, (), compositions, purged=False, pushes=pushes)
    deleted = tuple(version.ref for version in before if version.state != "purged")
    own = {link.digest for version in versions for link in catalog.arrays_of(version)}
    cleared, remains = clear(home, before)  # by their weights, whose digest the catalog is about to forget
    catalog.purge(versions, {digest: store.disk_bytes(digest) for digest in own})
    shared = tuple(sorted(own & catalog.referenced()))
    garbage = delete_unreferenced(workspace, dry_run=False)
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
