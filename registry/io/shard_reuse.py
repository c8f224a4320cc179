"""Reuse of unchanged files of weights when a composition replaces a composed folder.

The registry's home keeps a record of each composed folder: for every file of weights the digest of everything that its
bytes depend on, its tree digest, and the file's identity (device, inode, size, times of its last modification and of
its last change of status). A file is reused, as a hard link, if the new one depends on the same and its identity equals
the record's. git's index recognises unchanged files in the same way, without reading them: writing to a file, or
replacing it, changes its identity. File times advance in ticks, so a record is written a tick after the last change; on
file systems with whole seconds there is no record. Reading the files instead would cost as much as writing them.

Records are optional: without one, or on a file system without hard links, every file is written. A small model in one
file is always written, since its routers change.
"""

import hashlib
import json
import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from registry.home import Home
from registry.io.atomic import atomic_file
from registry.io.shard_writer import Shard
from store.digest import json_digest
from store.object_store import is_url

TICK_NS = 20_000_000
"""Longer than a tick of the system's clock for file times."""

Identity = tuple[int, ...]
"""Device, inode, size, time of modification, time of change of status, the times in ns."""


@dataclass
class ShardReuse:
    """The record of one folder.

    Attributes:
        record: the file of the record.
        out: the folder.
        known: digest of a file's origin → its name, its tree digest, its identity.
        noted: file name → (digest of its origin, its tree digest, its identity), of the folder that is being written.
    """

    record: Path
    out: Path
    known: dict[str, tuple[str, str, Identity]]
    noted: dict[str, tuple[str, str, Identity]] = field(default_factory=dict)

    @classmethod
    def of(cls, home: Home, out: Path) -> "ShardReuse":
        """Return the record of the folder `out`; without a record it is empty."""
        out = out.absolute()
        record, known = home.folders / f"{hashlib.sha256(str(out).encode()).hexdigest()[:32]}.json", {}
        try:
            for name, origin, digest, identity in json.loads(record.read_bytes())["files"]:
                if Path(name).name == name:
                    known[str(origin)] = (name, str(digest), tuple(int(number) for number in identity))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            known = {}
        return cls(record, out, known)

    def has(self, shard: Shard) -> bool:
        """Tell whether a file can be reused."""
        entry = self.known.get(origin_of(shard) or "")
        return entry is not None and _identity(self.out / entry[0]) == entry[2]

    def take(self, shard: Shard) -> str | None:
        """Link a file to its new path and return its tree digest; None if it must be written."""
        if not self.has(shard):
            return None
        name, digest, identity = self.known[origin_of(shard) or ""]
        try:
            os.link(self.out / name, shard.path, follow_symlinks=False)
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
                self.noted[shard.path.name] = origin, digest, identity

    def remember(self) -> None:
        """Write the record of the noted files, once the folder has its final path, if the home can be written."""
        files: list[tuple[str, str, str, Identity]] = []
        for name, (origin, digest, noted) in self.noted.items():
            current = _identity(self.out / name)
            if current is not None and current[:-1] == noted[:-1] and any(at % 10**9 for at in current[-2:]):
                files.append((name, origin, digest, current))
        newest = max((max(identity[-2:]) for *_, identity in files), default=0)
        time.sleep(min(max(newest + TICK_NS - time.time_ns(), 0), TICK_NS) / 1e9)
        changed = any(_identity(self.out / name) != identity for name, _, _, identity in files)
        if changed or newest + TICK_NS > time.time_ns():
            files = []
        with suppress(OSError):
            self._delete_absent()
            with atomic_file(self.record, f"{self.record.stem}.new", durable=False) as fresh:
                fresh.write_text(json.dumps({"out": str(self.out), "files": files}))

    def _delete_absent(self) -> None:
        """Delete the records of folders that are gone."""
        self.record.parent.mkdir(parents=True, exist_ok=True)
        for record in self.record.parent.glob("*.json"):
            try:
                out = json.loads(record.read_bytes())["out"]
                if not is_url(out) and not Path(out).exists():
                    record.unlink(missing_ok=True)
            except (ValueError, KeyError, TypeError, RecursionError):
                record.unlink(missing_ok=True)


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
