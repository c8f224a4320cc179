"""Small summaries of versions, so that a new one is compared with many without reading their arrays again.

Two files a version in one folder of the home, under its content digest: samples of its weights (`ancestry`) and
summaries of its statistics (`overlapping`). Each begins with the SHA-256 of the rest, so that a damaged one counts as
absent. Nothing here is needed, nor part of any content: every file can be made anew from the version's arrays.
"""

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from store.catalog import Catalog, VersionRecord

Kind = Literal["weights", "tokens"]

_LENGTH = 65
"""Bytes of the checksum and the newline after it."""


@dataclass(frozen=True)
class Summaries:
    """The summaries of one registry.

    Attributes:
        folder: where they are, created if absent.
        catalog: tells which versions there are still.
    """

    folder: Path
    catalog: Catalog

    def get(self, version: VersionRecord, kind: Kind) -> bytes | None:
        """Return what was put, or None where nothing was, or it is damaged."""
        try:
            data = self._path(version.digest, kind).read_bytes()
        except OSError:
            return None
        return data[_LENGTH:] if data[:_LENGTH] == _checksum(memoryview(data)[_LENGTH:]) else None

    def put(self, version: VersionRecord, kind: Kind, data: bytes) -> None:
        """Keep a summary of an active version; nothing is kept where the folder cannot be written.

        Needs no lock: who opts a version out says so in the catalog before it deletes the summaries, and here the
        catalog is asked after the summary is there.
        """
        path, fresh = self._path(version.digest, kind), self.folder / f".{secrets.token_hex(8)}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                fresh.write_bytes(_checksum(data) + data)
                fresh.replace(path)
            finally:
                fresh.unlink(missing_ok=True)
        except OSError:
            return
        if self.catalog.reread([version])[0].state != "active":
            path.unlink(missing_ok=True)

    def forget(self, versions: Collection[VersionRecord]) -> None:
        """Delete the summaries of versions that were opted out."""
        for version in versions:
            for kind in ("weights", "tokens"):
                self._path(version.digest, kind).unlink(missing_ok=True)

    def forget_others(self, versions: Collection[VersionRecord]) -> None:
        """Delete what belongs to none of `versions`."""
        digests = {version.digest for version in versions}
        for path in self.folder.glob("*") if self.folder.is_dir() else ():
            if path.name.partition(".")[0] not in digests:
                path.unlink(missing_ok=True)

    def _path(self, digest: str, kind: Kind) -> Path:
        return self.folder / f"{digest}.{kind}"


def _checksum(data: bytes | memoryview) -> bytes:
    return hashlib.sha256(data).hexdigest().encode() + b"\n"
