"""Reuse of unchanged files of weights when a composition replaces one at the same address, or goes on.

The registry's home keeps a record of each address: for every file of weights the digest of everything that its bytes
depend on, and its tree digest. Records are optional: without one every file is written.

Of a folder the record has each file's identity too (device, inode, size, times of its last modification and of its last
change of status). A file is reused, as a hard link, if the new one depends on the same and its identity equals the
record's. git's index recognises unchanged files in the same way, without reading them: writing to a file, or replacing
it, changes its identity. File times advance in ticks, so a record is written a tick after the last change; on file
systems with whole seconds there is no record. Reading the files instead would cost as much as writing them. A small
model in one file is always written, since its routers change.

Of a bucket a file that is known need not be rendered: its object is read and compared with its tree digest. That record
is written after every file.
"""

import hashlib
import json
import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from registry.home import Home
from registry.io.disk import atomic_file
from registry.io.shard_writer import Shard
from registry.io.tree_digest import PREFIX
from store.digest import json_digest
from store.object_store import is_url

TICK_NS = 20_000_000  # longer than a tick of the system's clock for file times

_NO_RECORD = (OSError, ValueError, KeyError, TypeError, RecursionError)

Identity = tuple[int, ...]  # device, inode, size, time of modification, time of change of status, the times in ns


class ShardReuse:
    """The record of one folder."""

    def __init__(self, home: Home, out: Path) -> None:
        self._out = out.absolute()
        self._record = _record_of(home, str(self._out))
        self._known: dict[str, tuple[str, str, Identity]] = {}  # digest of a file's origin → name, digest, identity
        self._noted: dict[str, tuple[str, str, Identity]] = {}  # file name → origin, digest, identity, of the new one
        try:
            for name, origin, digest, identity in json.loads(self._record.read_bytes())["files"]:
                if Path(name).name == name:
                    self._known[str(origin)] = (name, str(digest), tuple(map(int, identity)))
        except _NO_RECORD:
            self._known = {}

    def has(self, shard: Shard) -> bool:
        """Tell whether a file can be reused."""
        entry = self._known.get(origin_of(shard) or "")
        return entry is not None and _identity(self._out / entry[0]) == entry[2]

    def take(self, shard: Shard) -> str | None:
        """Link a file to its new path and return its tree digest; None if it must be written."""
        if not self.has(shard):
            return None
        name, digest, identity = self._known[origin_of(shard) or ""]
        try:
            os.link(self._out / name, shard.path, follow_symlinks=False)
        except OSError:
            return None
        linked = _identity(shard.path)
        if linked is None or linked[:-1] != identity[:-1]:  # it was replaced just now
            shard.path.unlink()
            return None
        return digest

    def note(self, shards: Sequence[Shard], digests: Sequence[str]) -> None:
        """Note the files that were written or reused."""
        for shard, digest in zip(shards, digests, strict=True):
            origin, identity = origin_of(shard), _identity(shard.path)
            if origin is not None and identity is not None:
                self._noted[shard.path.name] = origin, digest, identity

    def remember(self) -> None:
        """Write the record of the noted files, once the folder has its final path, if the home can be written."""
        files: list[tuple[str, str, str, Identity]] = []
        for name, (origin, digest, noted) in self._noted.items():
            current = _identity(self._out / name)
            if current is not None and current[:-1] == noted[:-1] and any(at % 10**9 for at in current[-2:]):
                files.append((name, origin, digest, current))
        newest = max((max(identity[-2:]) for *_, identity in files), default=0)
        time.sleep(min(max(newest + TICK_NS - time.time_ns(), 0), TICK_NS) / 1e9)
        changed = any(_identity(self._out / name) != identity for name, _, _, identity in files)
        if changed or newest + TICK_NS > time.time_ns():
            files = []
        with suppress(OSError):
            self._delete_absent()
            _write(self._record, {"out": str(self._out), "files": files})

    def _delete_absent(self) -> None:
        for record in self._record.parent.glob("*.json"):
            try:
                out = json.loads(record.read_bytes())["out"]
                if not is_url(out) and not Path(out).exists():
                    record.unlink(missing_ok=True)
            except (ValueError, KeyError, TypeError, RecursionError):
                record.unlink(missing_ok=True)


class UploadedShards:
    """The record of one URL."""

    def __init__(self, home: Home, url: str) -> None:
        self._record, self._url = _record_of(home, url), url
        self._known: dict[str, tuple[str, str]] = {}  # file name → digest of its origin, tree digest
        self._noted: dict[str, tuple[str, str]] = {}  # the same, of the composition that is being written
        try:
            for name, origin, digest in json.loads(self._record.read_bytes())["objects"]:
                self._known[str(name)] = str(origin), str(digest)
        except _NO_RECORD:
            self._known = {}

    def digest_of(self, shard: Shard) -> str | None:
        """Return the tree digest of a shard that was uploaded under the same name; None if that is not known."""
        origin, digest = self._known.get(shard.path.name, ("", ""))
        return digest if digest.startswith(PREFIX) and origin == origin_of(shard) else None

    def note(self, shard: Shard, digest: str) -> None:
        """Note a shard that was uploaded, and write the record."""
        if (origin := origin_of(shard)) is not None:
            self._noted[shard.path.name] = origin, digest
            self._write(self._known | self._noted)

    def remember(self) -> None:
        """Write the record of a composition that is whole: older entries are dropped."""
        self._write(self._noted)

    def _write(self, entries: dict[str, tuple[str, str]]) -> None:
        objects = [[name, *entry] for name, entry in sorted(entries.items())]
        with suppress(OSError):
            _write(self._record, {"out": self._url, "objects": objects})


def _record_of(home: Home, address: str) -> Path:
    return home.folders / f"{hashlib.sha256(address.encode()).hexdigest()[:32]}.json"


def _write(record: Path, document: dict[str, Any]) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(record, f"{record.stem}.new", durable=False) as fresh:
        fresh.write_text(json.dumps(document))


def origin_of(shard: Shard) -> str | None:
    """Return the digest of everything that a file's bytes depend on, including this program and its libraries."""
    origins = [stream.origin for stream in shard.streams]
    if None in origins:
        return None
    return json_digest([_program(), hashlib.sha256(shard.head).hexdigest(), origins])


@cache
def _program() -> str:
    """Return the digest of this program's files (by size and time), torch's version and the processor's kind."""
    import torch

    package = Path(__file__).parents[1]
    files = [(str(path.relative_to(package)), path.stat()) for path in sorted(package.rglob("*.py"))]
    own = [[name, status.st_size, status.st_mtime_ns] for name, status in files]
    return json_digest([own, torch.__version__, torch.backends.cpu.get_cpu_capability()])


def _identity(path: Path) -> Identity | None:
    """Return the identity of a regular file; None for anything else."""
    try:
        status = path.stat(follow_symlinks=False)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
