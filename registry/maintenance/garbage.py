"""What commands keep in the home while they run: what a purge must delete of it, and what of it is left by crashes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from registry.home import Home
from registry.io.work_dirs import WorkDir, remove, work_dirs_in
from registry.registration.summary_store import strays_in
from registry.workspace import Workspace
from store.catalog import Catalog, VersionRecord
from store.lock import exclusive
from store.ownership import check_owner, claim

STALE_SECONDS = 24 * 3600.0
"""What nobody ever held is taken to be left when it is this old: an earlier program may be writing it."""


@dataclass(frozen=True)
class Garbage:
    """What no version needs, and no command that is under way.

    Attributes:
        digests: arrays, on disk or in the catalog.
        nbytes: what they take on disk.
        passes: forward passes and trainings of routers that were interrupted.
        pass_bytes: what is written down of them.
        merged: adapters merged into their base models by registrations that never ended.
        merged_bytes: what they take on disk.
        work: models that compositions which never ended ran tokens through.
        work_bytes: what they take on disk.
        cached: statistics that compositions took anew, which can be taken again; and summaries of no active version.
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


def empty_cache(home: Home) -> None:
    """Delete the statistics that compositions took, of whichever versions, and the records of where they stand.

    Raises:
        StorageError: they cannot be deleted.
    """
    with exclusive(home.cache_lock, "emptying the cache of statistics"):
        remove(home.cache)
        remove(home.folders)


def delete_summaries(home: Home, catalog: Catalog) -> None:
    """Delete all summaries but those of active versions, and what a crash left of one that was being written.

    Raises:
        StorageError: they cannot be deleted.
    """
    with exclusive(home.cache_lock, "deleting summaries"):
        for path in _strays(home, catalog):
            remove(path)


def clear(home: Home, versions: Sequence[VersionRecord]) -> tuple[list[Path], list[str]]:
    """Delete what commands keep in the home of `versions`, whose weights the catalog still has the digest of.

    Interrupted passes of other weights stay, so that they go on. A pass of these weights that is under way is no longer
    written down. A model that another process works with stays for as long as that lives: the process deletes it, or
    after a crash the next purge does, or `reg gc`.

    Returns:
        What was deleted, and what was not, one line each.

    Raises:
        StorageError: something cannot be deleted.
    """
    digests = {version.digest for version in versions}
    digests |= {str(version.content["weights"]) for version in versions if version.content is not None}
    gone, stays = [], []
    for one in work_dirs_in(home.partial):
        if one.is_held is None or one.holds & digests:
            gone.append(one.path)
    for place in (home.merged, home.work):
        for one in work_dirs_in(place):
            if not one.is_held:
                gone.append(one.path)
            elif one.holds & digests:
                stays.append(f"another process works with a copy of it in {one.path} until it ends")
    for path in gone:
        remove(path)
    return gone, stays


def collect_garbage(workspace: Workspace, *, dry_run: bool) -> Garbage:
    """Delete arrays that no version needs, and what interrupted commands left (see `Registry.gc`)."""
    with exclusive(workspace.home.lock, "collecting garbage"):
        garbage = delete_unreferenced(workspace, dry_run=dry_run)
        return delete_leftovers(workspace.home, workspace.catalog, garbage, dry_run=dry_run)


def delete_unreferenced(workspace: Workspace, *, dry_run: bool) -> Garbage:
    """Delete every array that no version needs, and return them; with `dry_run` only return them.

    The caller holds the registry's lock, so that nothing that is being registered is taken for garbage.

    Raises:
        ConflictError: the arrays belong to another catalog, so that they only seem to be garbage.
    """
    catalog, store = workspace.catalog, workspace.arrays
    (check_owner if dry_run else claim)(catalog, store)
    needed = catalog.referenced()
    garbage = sorted({digest for digest in store.digests() if digest not in needed} | set(catalog.unreferenced()))
    if dry_run:
        return Garbage(tuple(garbage), sum(store.disk_bytes(digest) for digest in garbage))
    freed = sum(store.delete(digest) for digest in garbage)
    if garbage:
        catalog.forget_unreferenced(len(garbage), freed)
    return Garbage(tuple(garbage), freed)


def delete_leftovers(home: Home, catalog: Catalog, garbage: Garbage, *, dry_run: bool) -> Garbage:
    """Delete what interrupted commands left in the home, the cache, and summaries of no active version.

    Returns `garbage` with what that was.

    What a process is at is not disturbed. With `dry_run` nothing is deleted.
    """
    passes, merged, work = (
        [one.path for one in work_dirs_in(place) if _is_left(one)] for place in (home.partial, home.merged, home.work)
    )
    cached, strays = _files(home.cache), _strays(home, catalog)
    found = replace(
        garbage,
        passes=len(passes),
        pass_bytes=_size(passes),
        merged=len(merged),
        merged_bytes=_size(merged),
        work=len(work),
        work_bytes=_size(work),
        cached=len(cached) + len(strays),
        cached_bytes=_size(cached) + _size(strays),
    )
    if not dry_run:
        for path in (*passes, *merged, *work, *cached):
            remove(path)
        delete_summaries(home, catalog)
    return found


def _strays(home: Home, catalog: Catalog) -> list[Path]:
    return strays_in(home.summaries, {version.digest for version in catalog.versions(states=["active"])})


def _is_left(one: WorkDir) -> bool:
    if one.is_held is None:
        written = one.path.suffix == ".safetensors"  # a pass that an earlier program wrote down
        return written or _is_stale(one.path)
    return not one.is_held


def _is_stale(path: Path) -> bool:
    """Tell whether nothing in `path`, a file or a folder, was written for `STALE_SECONDS`."""
    try:
        return max(p.stat().st_mtime for p in (path, *path.rglob("*"))) < time.time() - STALE_SECONDS
    except FileNotFoundError:  # its command has just ended
        return False


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [below for below in sorted(path.rglob("*")) if below.is_file()]


def _size(paths: Sequence[Path]) -> int:
    total = 0
    for path in (file for each in paths for file in _files(each)):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # its command has just ended
            continue
    return total
