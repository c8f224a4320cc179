"""Warnings of members that were opted out after a folder was composed."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cli.output import is_quiet, note
from cli.session import Session
from registry.errors import RegError
from registry.io.model_folder import MARKER

if TYPE_CHECKING:
    from registry import Registry


def warn_of_opted_out(registry: "Registry", compositions: Iterable[Path | str]) -> None:
    """Print a line on stderr for each folder, or digest, with members that were opted out since.

    What cannot be looked up is not warned of: the command itself refuses what it cannot use.
    """
    for composition in () if is_quiet() else compositions:
        try:
            versions = registry.opted_out(composition)
        except RegError:
            continue
        if versions:
            members = " and ".join(f"{version.ref}, opted out {str(version.withdrawn_at)[:10]}" for version in versions)
            note(f"warning: {composition} contains {members}: compose the others without it, and delete the folder")


def warn_of_folder(session: Session, folder: Path) -> None:
    """Print the same for a command that needs no registry, if there is one that knows the folder."""
    if is_quiet() or not (folder / MARKER).is_file():
        return
    try:
        with session.registry() as registry:
            warn_of_opted_out(registry, [folder])
    except RegError:  # no registry, or none that can be opened
        return
