"""Opting out: withdrawal, purge, and the garbage that crashes leave."""

import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from registry.home import Home
from store.arrays import ArrayStore
from store.catalog import Catalog, CompositionRecord, PushRecord, VersionRecord
from store.ownership import check_owner, claim

STALE_SECONDS = 24 * 3600.0
"""A registration is taken to have ended when its folder, or the file that it was writing, is this old."""


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

    @property
    def deleted_arrays(self) -> int:
        """How many arrays went."""
        return len(self.deleted_digests)

    @property
    def shared_arrays(self) -> int:
        """How many arrays stay."""
        return len(self.shared_digests)


@dataclass(frozen=True)
class Garbage:
    """What no version needs.

    Attributes:
        digests: arrays, on disk or in the catalog.
        nbytes: what they take on disk.
        passes: forward passes that were interrupted, or are under way in another process, which then can no longer
            go on after an interruption.
        pass_bytes: what is written down of them.
        merged: adapters merged into their base models by registrations that never ended.
        merged_bytes: what they take on disk.
        work: models that compositions which never ended ran tokens through.
        work_bytes: what they take on disk.
        cached: statistics that compositions took anew; they can be taken again.
        cached_bytes: what they take on disk.
    """

    digests: tuple[str, ...]
    nbytes: int
    passes: int = 0
    pass_bytes: int = 0
    merged: int = 0
    merged_bytes: int = 0
    work: int = 0
    work_bytes: int = 0
    cached: int = 0
    cached_bytes: int = 0


def opt_out(catalog: Catalog, store: ArrayStore, versions: Sequence[VersionRecord], *, purge: bool) -> OptOut:
    """Withdraw `versions` from every later composition; with `purge` delete what only they needed.

    The caller holds the registry's lock.

    Raises:
        ConflictError: the arrays belong to another catalog.
    """
    claim(catalog, store)
    before = catalog.reread(versions)
    withdrew = tuple(version.ref for version in before if version.state == "active")
    catalog.withdraw(versions)
    compositions = tuple(catalog.compositions(versions))  # after withdrawal none is added
    pushes = tuple(catalog.pushes(pushable(versions, compositions)))
    if not purge:
        return OptOut(tuple(catalog.reread(versions)), withdrew, (), compositions, purged=False, pushes=pushes)
    deleted = tuple(version.ref for version in before if version.state != "purged")
    own = {link.digest for version in versions for link in catalog.arrays_of(version)}
    catalog.purge(versions)
    shared = tuple(sorted(own & catalog.referenced()))
    garbage = collect_garbage(catalog, store, dry_run=False)
    now = tuple(catalog.reread(versions))
    return OptOut(now, withdrew, deleted, compositions, True, pushes, garbage.digests, garbage.nbytes, shared)


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


def collect_leftovers(home: Home, garbage: Garbage, *, dry_run: bool) -> Garbage:
    """Delete what registrations and compositions left in the home, and return `garbage` with it; as `collect_garbage`.

    One that is under way is not disturbed: it holds no lock during its pass.
    """
    passes = [path for path in _files(home.partial) if path.suffix != ".partial" or _is_stale(path)]
    merged, work = ([f for f in sorted(place.glob("*")) if _is_stale(f)] for place in (home.merged, home.work))
    cached = _files(home.cache)
    found = replace(
        garbage,
        passes=len(passes),
        pass_bytes=sum(_size(path) for path in passes),
        merged=len(merged),
        merged_bytes=sum(_size(path) for folder in merged for path in _files(folder)),
        work=len(work),
        work_bytes=sum(_size(path) for folder in work for path in _files(folder)),
        cached=len(cached),
        cached_bytes=sum(_size(path) for path in cached),
    )
    if not dry_run:
        for path in (*passes, *cached):
            path.unlink(missing_ok=True)
        for folder in (*merged, *work):
            shutil.rmtree(folder)
    return found


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # its pass has just ended
        return 0


def _is_stale(path: Path) -> bool:
    """Tell whether nothing in `path`, a file or a folder, was written for `STALE_SECONDS`."""
    try:
        return max(p.stat().st_mtime for p in (path, *path.rglob("*"))) < time.time() - STALE_SECONDS
    except FileNotFoundError:  # its registration has just ended, or is busy
        return False
