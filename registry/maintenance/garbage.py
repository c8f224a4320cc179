"""Deletion of garbage: unused arrays, leftovers of crashes, and what a purge must delete besides arrays."""

import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from registry.errors import RegError
from registry.home import Home
from registry.io.work_dirs import WorkDir, remove, work_dirs_in
from registry.registration.summary_store import strays_in
from registry.workspace import Workspace
from store.catalog import Catalog, VersionRecord
from store.lock import exclusive
from store.ownership import check_owner, claim

STALE_SECONDS = 24 * 3600.0
"""Age from which a folder without a lock counts as abandoned: early versions of this program wrote without locks."""


@dataclass(frozen=True)
class Piece:
    """A file or folder of garbage by its path, or an array by its digest."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class Garbage:
    """Files that neither a version nor a running command needs, and their sizes on disk in bytes."""

    digests: tuple[str, ...]  # arrays, on disk or in the catalog; `nbytes` is their size
    nbytes: int
    passes: int = 0  # interrupted forward passes and trainings of routers
    pass_bytes: int = 0  # their size
    merged: int = 0  # adapters merged into their base models by interrupted registrations
    merged_bytes: int = 0  # their size
    work: int = 0  # temporary models of interrupted compositions
    work_bytes: int = 0  # their size
    cached: int = 0  # statistics that compositions recollected, which is repeatable, and summaries of inactive versions
    cached_bytes: int = 0  # their size
    pieces: tuple[Piece, ...] = ()  # everything above, each with its size: arrays, then files and folders


def delete_cache(home: Home) -> None:
    """Delete the statistics that compositions recollected, and the records of where they are (errors as `remove`)."""
    with exclusive(home.cache_lock, "emptying the cache of statistics"):
        remove(home.cache)
        remove(home.folders)


def delete_summaries(home: Home, catalog: Catalog) -> None:
    """Delete summaries but those of active versions, and incomplete ones that a crash left (errors as `remove`)."""
    with exclusive(home.cache_lock, "deleting summaries"):
        for path in _strays(home, catalog):
            remove(path)


def delete_work_of(home: Home, versions: Sequence[VersionRecord]) -> tuple[list[Path], list[str]]:
    """Delete temporary files of commands that contain data of `versions`; the catalog must still know their weights.

    Interrupted passes over other weights stay, so that they can resume. A running pass over these weights is no longer
    saved. A model that another process uses stays until that process ends: the process deletes it, or, after a crash,
    the next purge or `reg gc` does. The deleted paths are returned, and a line for each that stays (errors: `remove`).
    """
    digests = {version.digest for version in versions}
    digests |= {str(version.content["weights"]) for version in versions if version.content is not None}
    deleted, remains = [], []
    for work_dir in work_dirs_in(home.partial):
        if work_dir.is_held is None or work_dir.holds & digests:
            deleted.append(work_dir.path)
    for folder in (home.merged, home.work):
        for work_dir in work_dirs_in(folder):
            if not work_dir.is_held:
                deleted.append(work_dir.path)
            elif work_dir.holds & digests:
                remains.append(f"another process uses a copy of it in {work_dir.path} until it ends")
    for path in deleted:
        remove(path)
    return deleted, remains


def collect_garbage(workspace: Workspace, *, dry_run: bool) -> Garbage:
    """Delete arrays that nothing uses, what interrupted commands left, the cache, and summaries of inactive versions.

    Files of running processes stay. With `dry_run` nothing is deleted.
    """
    home, catalog = workspace.home, workspace.catalog
    with catalog.lock("collecting garbage"):
        garbage = delete_unreferenced(workspace, dry_run=dry_run)
        passes, merged, work = (
            [work_dir.path for work_dir in work_dirs_in(folder) if _is_abandoned(work_dir)]
            for folder in (home.partial, home.merged, home.work)
        )
        cached, strays = _files(home.cache), _strays(home, catalog)
        paths = (*passes, *merged, *work, *cached, *strays)
        collected = replace(
            garbage,
            passes=len(passes),
            pass_bytes=_size(passes),
            merged=len(merged),
            merged_bytes=_size(merged),
            work=len(work),
            work_bytes=_size(work),
            cached=len(cached) + len(strays),
            cached_bytes=_size(cached) + _size(strays),
            pieces=(*garbage.pieces, *(Piece(str(path), _size([path])) for path in paths)),
        )
        if not dry_run:
            for path in (*passes, *merged, *work, *cached):
                remove(path)
            delete_summaries(home, catalog)
        return collected


def delete_unreferenced(workspace: Workspace, *, dry_run: bool) -> Garbage:
    """Delete every array that nothing uses, and return them; with `dry_run` only return them (errors as `claim`).

    The caller holds the registry's lock, so that arrays of a running registration are not treated as garbage.
    """
    catalog, store = workspace.catalog, workspace.arrays
    (check_owner if dry_run else claim)(catalog, store)
    needed = catalog.referenced()
    garbage = sorted({digest for digest in store.digests() if digest not in needed} | set(catalog.unreferenced()))
    pieces = []
    for digest in garbage:
        with nullcontext() if dry_run else catalog.holding():
            pieces.append(Piece(digest, store.disk_bytes(digest) if dry_run else store.delete(digest)))
    freed = sum(piece.nbytes for piece in pieces)
    if not dry_run:
        store.keep_copies_of(needed)
        if garbage:
            catalog.forget_unreferenced(len(garbage), freed)
    return Garbage(tuple(garbage), freed, pieces=tuple(pieces))


def _strays(home: Home, catalog: Catalog) -> list[Path]:
    return strays_in(home.summaries, {version.digest for version in catalog.versions(states=["active"])})


def _is_abandoned(work_dir: WorkDir) -> bool:
    path = work_dir.path
    if work_dir.is_held is not None:
        return not work_dir.is_held
    if path.suffix == ".safetensors":  # the saved pass of an early version of this program
        return True
    try:
        return max(each.stat().st_mtime for each in (path, *path.rglob("*"))) < time.time() - STALE_SECONDS
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


EVENTS = 1000
"""Number of events without an opt-out after which the last one is noted, so that they are not looked through again."""


def follow_opt_outs(workspace: Workspace) -> None:
    """Delete copies of versions that were opted out since this home was last opened, as `withdraw` does in its own.

    Does nothing if the home has its own catalog. What cannot be read or deleted now, as where the user may only read,
    is left for the next time.
    """
    home, catalog = workspace.home, workspace.catalog
    if home.has_own_catalog or not catalog.exists:
        return
    with suppress(RegError, OSError):
        last = _seen(home.log_seen)
        newest, opt_outs = catalog.opt_outs_since(*last)
        if opt_outs:
            delete_cache(home)
            delete_summaries(home, catalog)
        if purges := [event for event in opt_outs if event.action == "purge"]:
            _delete_passes(workspace)
            needed = catalog.referenced()
            # A command that is running would otherwise make copies of deleted arrays again.
            workspace.arrays.drop_copies_of({digest for one in purges for digest in one.details["deleted"]} - needed)
            workspace.arrays.keep_copies_of(needed)
        if opt_outs or newest[0] >= last[0] + EVENTS:
            home.log_seen.write_text(f"{newest[0]} {newest[1]}\n")


def _delete_passes(workspace: Workspace) -> None:
    """Delete temporary files that nobody uses, but states of passes over weights of active versions.

    The catalog no longer knows what the weights of a purged version were, so states of passes over weights that no
    active version has are deleted too.
    """
    home = workspace.home
    active = workspace.catalog.versions(states=["active"])
    known = {version.digest for version in active}
    known |= {str(version.content["weights"]) for version in active if version.content is not None}
    delete_work_of(home, [v for v in workspace.catalog.versions(states=["purged"]) if v.digest not in known])
    for work_dir in work_dirs_in(home.partial):
        if not work_dir.is_held and not work_dir.holds <= known:
            remove(work_dir.path)


def _seen(path: Path) -> tuple[int, str]:
    """Return id and digest of the event that was noted; 0 and nothing where none was, or the file is damaged."""
    try:
        event, digest = path.read_text().split()
        return int(event), digest
    except (OSError, ValueError):
        return 0, ""
