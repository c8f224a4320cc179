"""Small summaries of versions, by which a new version is compared with many others without reading their arrays.

Each version has two files in one folder of the home, named by its content digest: samples of its weights (`lineage`)
and summaries of its statistics (`expert_overlap`). They reveal something of the version, so an opt-out deletes them;
otherwise they can be recomputed from its arrays. They are not part of any content.

Each file begins with the SHA-256 of the rest. A file that is damaged, too large or of another form counts as absent,
and is recomputed. A forged file with a valid SHA-256 can change reported relations and overlaps, but nothing that is
registered or composed: a checkpoint is accepted or refused by arrays (`confirm_related`).
"""

import hashlib
import os
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

from registry.errors import ConflictError, StorageError
from registry.io.disk import atomic_file
from registry.io.limits import SUMMARY_BYTES
from registry.workspace import Workspace
from store.catalog import VersionRecord
from store.lock import exclusive

Kind = Literal["weights", "tokens"]

_LENGTH = 65  # bytes of the checksum and the newline after it


def read_summary(workspace: Workspace, version: VersionRecord, kind: Kind) -> bytes | None:
    """Return a version's summary, or None if it is missing or damaged."""
    try:
        descriptor = os.open(_path(workspace, version, kind), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not _LENGTH <= status.st_size <= _LENGTH + SUMMARY_BYTES:
                return None
            checksum, data = file.read(_LENGTH), file.read(SUMMARY_BYTES)
    except OSError:
        return None
    return data if checksum == _checksum(data) else None


def keep_summary(workspace: Workspace, version: VersionRecord, kind: Kind, data: bytes) -> None:
    """Store a summary if the version is still active and the home can be written.

    An opt-out changes the catalog first, and then deletes summaries under the same lock. So no summary is stored after
    it, and incomplete files of a crash are deleted too.
    """
    path = _path(workspace, version, kind)
    with (
        suppress(OSError, StorageError, ConflictError),
        exclusive(workspace.home.cache_lock, "keeping a summary"),
    ):
        if len(data) > SUMMARY_BYTES or workspace.catalog.reread([version])[0].state != "active":
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path, f"{path.name}.new", durable=False) as fresh:
            fresh.write_bytes(_checksum(data) + data)


def _path(workspace: Workspace, version: VersionRecord, kind: Kind) -> Path:
    return workspace.home.summaries / f"{version.digest}.{kind}"


def strays_in(folder: Path, digests: Collection[str]) -> list[Path]:
    """Return the paths in the folder of summaries that do not belong to versions with these digests."""
    if not folder.is_dir() or folder.is_symlink():
        return [folder] if os.path.lexists(folder) else []
    names = {f"{digest}.{kind}" for digest in digests for kind in get_args(Kind)}
    return [path for path in sorted(folder.iterdir()) if path.name not in names]


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode() + b"\n"
