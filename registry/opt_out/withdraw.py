"""Withdrawal and purge of versions, without torch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from registry.checkpoint.joint_training import parts_in
from registry.errors import NotFoundError, OutputError
from registry.io.work_dirs import remove
from registry.maintenance.garbage import delete_cache, delete_summaries, delete_unreferenced, delete_work_of
from registry.workspace import Workspace
from store.catalog import Catalog, CompositionRecord, PushRecord, VersionRecord
from store.ownership import claim


@dataclass(frozen=True)
class Heirs:
    """The members of a mixture that would get the tokens of one that leaves: name → share, predicted from counts."""

    composition: str
    ref: str
    shares: Mapping[str, float]  # expert → shares, predicted from counts of tokens


@dataclass(frozen=True)
class OptOut:
    """The result of opting out, or what it would be.

    Attributes:
        compositions: compositions ever made from any of them; their folders still hold the weights.
        deleted_digests: deleted arrays, including leftovers of earlier crashes; `deleted_bytes` is their size on disk.
        cleared: paths of leftovers of interrupted commands, and of copies of the catalog, that were deleted.
    """

    versions: tuple[VersionRecord, ...]
    withdrew: tuple[str, ...]  # those of the versions that were active before
    deleted: tuple[str, ...]  # those of them that were not purged before
    compositions: tuple[CompositionRecord, ...]
    purged: bool  # True with --purge
    aliases: tuple[str, ...] = ()  # their aliases, NAME@ALIAS, protected ones too: a purge deletes them, else they stay
    pushes: tuple[PushRecord, ...] = ()  # the pushes of versions and compositions to the Hub
    deleted_digests: tuple[str, ...] = ()
    deleted_bytes: int = 0  # their size on disk
    shared_digests: tuple[str, ...] = ()  # arrays that stay because another version uses them
    cleared: tuple[str, ...] = ()
    remains: tuple[str, ...] = ()  # one line for each file that another process uses and that could not be deleted yet
    trained_together: tuple[str, ...] = ()  # active versions whose weights were trained together with any of them
    heirs: tuple[Heirs, ...] = ()  # who would get its tokens; of an opt-out that was only asked about
    old_versions: tuple[str, ...] = ()  # one line if a bucket keeps old versions of what was deleted
    beyond: str | None = None  # where the catalog's deleted rows may be that the registry cannot reach; None if nowhere

    @property
    def deleted_arrays(self) -> int:
        """Number of deleted arrays."""
        return len(self.deleted_digests)

    @property
    def shared_arrays(self) -> int:
        """Number of arrays that stay."""
        return len(self.shared_digests)


def withdraw(workspace: Workspace, versions: Sequence[VersionRecord], *, purge: bool) -> OptOut:
    """Withdraw `versions` from all later compositions; with `purge`, delete the arrays that only they use.

    Tensors that were trained in compositions made from them are among these arrays. If it is interrupted, repeating it
    completes it. The caller holds the registry's lock.

    (ConflictError, StorageError: the arrays belong to another catalog; a file cannot be deleted.)
    """
    home, catalog, store = workspace.home, workspace.catalog, workspace.arrays
    claim(catalog, store)
    before = catalog.reread(versions)
    catalog.withdraw(versions)
    # After the withdrawal no command adds files or compositions of these versions.
    delete_cache(home)
    delete_summaries(home, catalog)
    did = concerned(workspace, before, purge=purge)  # a purge deletes what tells it
    if not purge:
        return replace(did, versions=tuple(catalog.reread(versions)))
    own = own_arrays(catalog, versions)
    cleared, remains = delete_work_of(home, before)  # before the purge, which deletes the digests of the weights
    catalog.purge(versions, {digest: store.disk_bytes(digest) for digest in own}, did.trained_together)
    shared = tuple(sorted(own & catalog.referenced()))
    garbage = delete_unreferenced(workspace, dry_run=False)
    for path in catalog.backups():
        remove(path)
        cleared.append(path)
    if obstacle := catalog.erase():
        remains.append(obstacle)
    remains += [f"{path} is of an earlier catalog of this home, and yours to delete" for path in home.former_catalogs]
    return replace(
        did,
        versions=tuple(catalog.reread(versions)),
        deleted_digests=garbage.digests,
        deleted_bytes=garbage.nbytes,
        shared_digests=shared,
        cleared=tuple(map(str, cleared)),
        remains=tuple(remains),
        old_versions=tuple(filter(None, [store.past_deletion()])),
        beyond=catalog.beyond,
    )


def concerned(workspace: Workspace, versions: Sequence[VersionRecord], *, purge: bool) -> OptOut:
    """Return what opting `versions`, as they were before, out concerns; nothing is deleted."""
    compositions = tuple(workspace.catalog.compositions(versions))
    return OptOut(
        versions=tuple(versions),
        withdrew=tuple(version.ref for version in versions if version.state == "active"),
        deleted=tuple(version.ref for version in versions if version.state != "purged") if purge else (),
        compositions=compositions,
        purged=purge,
        aliases=tuple(f"{version.name}@{alias}" for version in versions for alias in version.aliases),
        pushes=tuple(workspace.catalog.pushes(pushable(versions, compositions))),
        trained_together=_together(workspace, versions),
    )


def own_arrays(catalog: Catalog, versions: Sequence[VersionRecord]) -> set[str]:
    """Return the digests of the arrays of versions, and of those trained in compositions with them."""
    return {link.digest for version in versions for link in catalog.arrays_of(version)} | catalog.trained_with(versions)


def pushable(versions: Iterable[VersionRecord], compositions: Iterable[CompositionRecord]) -> set[str]:
    """Return the subjects under which pushes of versions, and of compositions made from them, are logged."""
    return {version.ref for version in versions} | {composition.digest for composition in compositions}


def trained_together(
    versions: Sequence[VersionRecord], active: Callable[[], Iterable[VersionRecord]]
) -> tuple[str, ...]:
    """Return the others, among all that `active` returns, of the joint trainings that some versions are part of."""
    shared = {digest for version in versions if (digest := _shared_of(version)) is not None}
    if not shared:
        return ()
    own = {version.id for version in versions}
    return tuple(one.ref for one in active() if _shared_of(one) in shared and one.id not in own)


def _together(workspace: Workspace, versions: Sequence[VersionRecord]) -> tuple[str, ...]:
    """Return the active versions that were trained together with some of `versions`: of purged ones, by the log."""
    events = [event for one in versions if one.state == "purged" for event in workspace.catalog.events(one.ref)]
    named = {ref for event in events if event.action == "purge" for ref in event.details.get("trained_together", ())}
    if not named:
        return trained_together(versions, workspace.versions)
    named.update(trained_together(versions, workspace.versions))
    return tuple(one.ref for one in workspace.versions() if one.ref in named)


def _shared_of(version: VersionRecord) -> str | None:
    """Return what all versions of a joint training share; None of a version of none, and of one that was purged."""
    return next((one.shared_digest(part, version.digest) for one, part in parts_in(version.content)), None)


def check_receipt(path: Path) -> None:
    """Check that there is a file to read a receipt from (NotFoundError: there is none)."""
    if not path.is_file():
        raise NotFoundError(f"{path} is not a file", "name the file that reg opt-out --receipt wrote")


def check_new_receipt(path: Path) -> None:
    """Check that a receipt can be written to a new file (OutputError: it exists, or its folder does not)."""
    path = path.absolute()
    if path.exists() or path.is_symlink():
        raise OutputError(f"{path} exists, and receipts are never overwritten", "choose another --receipt")
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent} is not a folder", "create it, or choose another --receipt")
