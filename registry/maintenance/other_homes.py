"""Opt-outs from other homes of a shared catalog: deletes what this home keeps of the versions.

An opt-out clears the home that it runs in. Every other home compares itself with the log when it is opened: it keeps
the id and digest of the last event that it has seen, so that one query suffices where nothing happened.
"""

from contextlib import suppress
from pathlib import Path

from registry.errors import RegError
from registry.io.work_dirs import remove, work_dirs_in
from registry.maintenance.garbage import delete_cache, delete_summaries, delete_work_of
from registry.workspace import Workspace
from store.catalog import EventRecord

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
            _delete_chunks(workspace, purges)
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


def _delete_chunks(workspace: Workspace, purges: list[EventRecord]) -> None:
    """Delete copies of deleted arrays, which a command that is running would otherwise make again."""
    needed = workspace.catalog.referenced()
    workspace.arrays.drop_copies_of({digest for event in purges for digest in event.details["deleted"]} - needed)
    workspace.arrays.keep_copies_of(needed)


def _seen(path: Path) -> tuple[int, str]:
    """Return id and digest of the event that was noted; 0 and nothing where none was, or the file is damaged."""
    try:
        event, digest = path.read_text().split()
        return int(event), digest
    except (OSError, ValueError):
        return 0, ""
