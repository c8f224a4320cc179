"""Checks of a composed folder: its files are those that were composed, and its members are still there to be used."""

from collections.abc import Iterator

from registry.doctor.examined_folder import ExaminedFolder
from registry.doctor.finding import Finding, error, passed, skipped, warning
from registry.errors import ConflictError
from registry.io.display import few
from registry.io.model_folder import MARKER
from registry.names.resolve import find_by_digest


def check_members(folder: ExaminedFolder) -> Iterator[Finding]:
    """Look for members that were opted out since, and compare their positions with the folder's."""
    if not (folder.path / MARKER).is_file():
        yield skipped("it was not composed by this program")
        return
    if folder.composed is None:
        yield skipped(f"its {MARKER} cannot be read")
        return
    if folder.workspace is None:
        yield skipped("no registry is open: name one with reg --home DIR")
        return
    unknown = []
    for version in folder.composed.manifest.versions:
        try:
            if find_by_digest(folder.workspace.catalog, version.name, version.digest, folder.quoted) is None:
                unknown.append(version.name)
        except ConflictError as conflict:
            yield error(conflict.message.replace(f"{folder.quoted} holds", "it holds", 1), conflict.hint)
    if unknown:
        yield passed(f"{few(unknown)}: not registered here, so nothing more is known of it")
    yield from _positions(folder)


def _positions(folder: ExaminedFolder) -> Iterator[Finding]:
    own = folder.config.get("max_position_embeddings")
    for name, member in folder.members.items():
        longest = member.architecture.max_position_embeddings
        if isinstance(own, int) and isinstance(longest, int) and own > longest:
            yield warning(f"config.json allows {own:,} positions, its member {name} was made for {longest:,}")
            return


def check_integrity(folder: ExaminedFolder) -> Iterator[Finding]:
    """Compare every file with the digests of the composition."""
    if not (folder.path / MARKER).is_file():
        yield skipped("it was not composed by this program")
        return
    if folder.composed is None:
        yield error(f"its {MARKER} cannot be read", "copy that file again, or compose the folder again")
        return
    judge = warning if folder.has_errors else error  # another error says already what is wrong with the files
    if folder.changes:
        first = folder.changes[0].replace("since it was written", "since it was composed")
        more = f", and {len(folder.changes) - 1} more files" if len(folder.changes) > 1 else ""
        yield judge(f"{first}{more}", folder.again)
