"""What a recomposition takes over from the folder that it replaces: the files of weights in which nothing changes.

Of each composed folder a record is kept in the registry's home: for every file of weights what its bytes are a function
of, their SHA-256, and the file's identity (device, inode, size, times of its last modification and of its last change
of status). A file is taken over, as a hard link, where the new one is a function of the same and its identity is what
the record says. That is how git's index knows that a file was not touched, without reading it: whoever writes to a
file, or puts another in its place, changes its identity. Times count in ticks, so a record is written a tick after the
last change, and none is where times are whole seconds. Reading the files instead would cost as much as writing them.

Nothing here is needed: without a record, or where the file system knows no hard links, everything is written anew. One
file that holds all weights of a small model changes with its routers, so it is always written anew.
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

TICK_NS = 20_000_000
"""Longer than the system's clock of file times stands still."""

Identity = tuple[int, ...]
"""Device, inode, size, time of modification, time of change of status, the times in ns."""


@dataclass
class ShardReuse:
    """The record of one folder.

    Attributes:
        record: its file.
        out: the folder.
        known: what a file's bytes are a function of → its name, its SHA-256, its identity.
        noted: file name → (what its bytes are a function of, its SHA-256, its identity) of the folder that is written.
    """

    record: Path
    out: Path
    known: dict[str, tuple[str, str, Identity]]
    noted: dict[str, tuple[str, str, Identity]] = field(default_factory=dict)

    @classmethod
    def of(cls, home: Home, out: Path) -> "ShardReuse":
        """Return what is recorded of the folder `out`, which may be nothing."""
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
        """Tell whether a file can be taken over."""
        found = self.known.get(_origin(shard) or "")
        return found is not None and _identity(self.out / found[0]) == found[2]

    def take(self, shard: Shard) -> str | None:
        """Link a file to its new place and return its SHA-256; None where it has to be written."""
        if not self.has(shard):
            return None
        name, digest, identity = self.known[_origin(shard) or ""]
        try:
            os.link(self.out / name, shard.path, follow_symlinks=False)
        except OSError:
            return None
        found = _identity(shard.path)
        if found is None or found[:-1] != identity[:-1]:  # it was exchanged just now
            shard.path.unlink()
            return None
        return digest

    def note(self, shards: Sequence[Shard], digests: Sequence[str]) -> None:
        """Take down what was written or taken over."""
        for shard, digest in zip(shards, digests, strict=True):
            origin, identity = _origin(shard), _identity(shard.path)
            if origin is not None and identity is not None:
                self.noted[shard.path.name] = origin, digest, identity

    def remember(self) -> None:
        """Record what was taken down, now that the folder stands in its place; nothing where that cannot be."""
        files: list[tuple[str, str, str, Identity]] = []
        for name, (origin, digest, noted) in self.noted.items():
            found = _identity(self.out / name)
            if found is not None and found[:-1] == noted[:-1] and any(at % 10**9 for at in found[-2:]):
                files.append((name, origin, digest, found))
        newest = max((max(found[-2:]) for *_, found in files), default=0)
        time.sleep(min(max(newest + TICK_NS - time.time_ns(), 0), TICK_NS) / 1e9)
        if newest + TICK_NS > time.time_ns() or any(_identity(self.out / name) != found for name, _, _, found in files):
            files = []
        with suppress(OSError):
            self._forget_absent()
            with atomic_file(self.record, f"{self.record.stem}.new", durable=False) as fresh:
                fresh.write_text(json.dumps({"out": str(self.out), "files": files}))

    def _forget_absent(self) -> None:
        """Delete the records of folders that are gone."""
        self.record.parent.mkdir(parents=True, exist_ok=True)
        for record in self.record.parent.glob("*.json"):
            try:
                if not Path(json.loads(record.read_bytes())["out"]).exists():
                    record.unlink(missing_ok=True)
            except (ValueError, KeyError, TypeError, RecursionError):
                record.unlink(missing_ok=True)


def _origin(shard: Shard) -> str | None:
    """Return the digest of what a file's bytes are a function of, this program and its libraries among it."""
    origins = [stream.origin for stream in shard.streams]
    if None in origins:
        return None
    return json_digest([_program(), hashlib.sha256(shard.head).hexdigest(), origins])


@cache
def _program() -> str:
    """Return the digest of what computes: this program's files (by size and time), torch, the processor's kind."""
    import torch

    package = Path(__file__).parents[1]
    files = [(str(path.relative_to(package)), path.stat()) for path in sorted(package.rglob("*.py"))]
    own = [[name, found.st_size, found.st_mtime_ns] for name, found in files]
    return json_digest([own, torch.__version__, torch.backends.cpu.get_cpu_capability()])


def _identity(path: Path) -> Identity | None:
    """Return the identity of a file; None where there is no plain file."""
    try:
        found = path.stat(follow_symlinks=False)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
