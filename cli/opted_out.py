"""Warnings of members that were opted out after a folder was composed."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cli.output import is_quiet, note
from cli.session import Session
from registry.errors import RegError
from registry.io.model_folder import MARKER

if TYPE_CHECKING:
    from registry import Registry

_DIGEST = re.compile(r"[0-9a-f]{6,64}")


def warn_of_opted_out(registry: "Registry", compositions: Iterable[Path | str]) -> None:
    """Print a line on stderr for each folder, or digest, with members that were opted out since.

    What cannot be looked up is not warned of: the command itself refuses what it cannot use.
    """
    for composition in () if is_quiet() else compositions:
        if not (_is_composed(Path(composition)) or _DIGEST.fullmatch(str(composition))):
            continue  # before anything heavy is imported: the command refuses a wrong name at once
        try:
            versions = registry.opted_out(composition)
        except RegError:
            continue
        if versions:
            members = " and ".join(f"{version.ref}, opted out {str(version.withdrawn_at)[:10]}" for version in versions)
            note(f"warning: {composition} contains {members}: compose the others without it, and delete the folder")


def warn_of_folder(session: Session, folder: Path) -> None:
    """Print the same for a command that needs no registry, if there is one that knows the folder."""
    if is_quiet() or not _is_composed(folder):
        return
    try:
        with session.registry() as registry:
            warn_of_opted_out(registry, [folder])
    except RegError:  # no registry, or none that can be opened
        return


def _is_composed(path: Path) -> bool:
    try:
        return (path / MARKER).is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False
