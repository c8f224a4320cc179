"""Small summaries of versions, so that a new one is compared with many without reading their arrays again.

Two files a version in one folder of the home, under its content digest: samples of its weights (`ancestry`) and
summaries of its statistics (`overlapping`). They hold something of the version, so they go when it is opted out; all
others can be made anew from its arrays, and nothing of them is part of any content.

Each file begins with the SHA-256 of the rest. One that is damaged, too large, or not what this program writes counts as
absent and is made anew. One that somebody made up, with its own SHA-256, can change what is said of other versions, and
nothing that is registered or composed: whether a checkpoint is taken is decided by arrays (`relating`).
"""

import hashlib
import os
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from registry.errors import ConflictError, StorageError
from registry.home import Home
from registry.io.atomic import atomic_file
from registry.io.limits import SUMMARY_BYTES
from registry.workspace import Workspace
from store.catalog import Catalog, VersionRecord
from store.lock import exclusive

Kind = Literal["weights", "tokens"]

_LENGTH = 65
"""Bytes of the checksum and the newline after it."""


@dataclass(frozen=True)
class SummaryStore:
    """The summaries of one registry.

    Attributes:
        home: where they are.
        catalog: tells which versions are active.
    """

    home: Home
    catalog: Catalog

    def get(self, version: VersionRecord, kind: Kind) -> bytes | None:
        """Return what was put, or None where nothing was, or it is damaged."""
        try:
            descriptor = os.open(self._path(version, kind), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode) or not _LENGTH <= found.st_size <= _LENGTH + SUMMARY_BYTES:
                    return None
                checksum, data = file.read(_LENGTH), file.read(SUMMARY_BYTES)
        except OSError:
            return None
        return data if checksum == _checksum(data) else None

    def put(self, version: VersionRecord, kind: Kind, data: bytes) -> None:
        """Keep a summary, if the version is active still; nothing is kept where the home cannot be written.

        Who opts a version out says so in the catalog before it deletes summaries, and holds the same lock for that: so
        none is put afterwards, and what a crash left half-written is deleted with it.
        """
        path = self._path(version, kind)
        try:
            with exclusive(self.home.cache_lock, "keeping a summary"):
                if len(data) > SUMMARY_BYTES or self.catalog.reread([version])[0].state != "active":
                    return
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_file(path, f"{path.name}.new", durable=False) as fresh:
                    fresh.write_bytes(_checksum(data) + data)
        except (OSError, StorageError, ConflictError):
            return

    def _path(self, version: VersionRecord, kind: Kind) -> Path:
        return self.home.summaries / f"{version.digest}.{kind}"


def summary_store(workspace: Workspace) -> SummaryStore:
    """Return the summaries of a registry."""
    return SummaryStore(workspace.home, workspace.catalog)


def strays_in(folder: Path, digests: Collection[str]) -> list[Path]:
    """Return what is in the folder of summaries and is none of versions with these digests."""
    if not folder.is_dir() or folder.is_symlink():
        return [folder] if os.path.lexists(folder) else []
    names = {f"{digest}.{kind}" for digest in digests for kind in get_args(Kind)}
    return [path for path in sorted(folder.iterdir()) if path.name not in names]


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode() + b"\n"
