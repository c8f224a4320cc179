"""The record, in the registry's home, of the shards that a composition brought to a bucket.

For each file it has the digest of everything that its bytes depend on, and its tree digest, so that a composition that
goes on after an interruption, or replaces an earlier one, need not render what is there already: it reads the object
and compares. The record is written after every shard. It is optional, as that of local folders (`ShardReuse`).
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from registry.home import Home
from registry.io.atomic import atomic_file
from registry.io.shard_reuse import origin_of
from registry.io.shard_writer import Shard
from registry.io.tree_digest import PREFIX


@dataclass
class UploadedShards:
    """The record of one URL.

    Attributes:
        record: its file.
        url: the URL.
        known: file name → (digest of its origin, its tree digest), of earlier compositions.
        noted: the same, of the one that is being written.
    """

    record: Path
    url: str
    known: dict[str, tuple[str, str]]
    noted: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, home: Home, url: str) -> "UploadedShards":
        """Return the record of a URL; without one it is empty."""
        record = home.folders / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"
        known = {}
        try:
            for name, origin, digest in json.loads(record.read_bytes())["objects"]:
                known[str(name)] = str(origin), str(digest)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            known = {}
        return cls(record, url, known)

    def digest_of(self, shard: Shard) -> str | None:
        """Return the tree digest of a shard that was uploaded under the same name; None if that is not known."""
        origin, digest = self.known.get(shard.path.name, ("", ""))
        return digest if digest.startswith(PREFIX) and origin == origin_of(shard) else None

    def note(self, shard: Shard, digest: str) -> None:
        """Note a shard that was uploaded, and write the record."""
        if (origin := origin_of(shard)) is not None:
            self.noted[shard.path.name] = origin, digest
            self._write(self.known | self.noted)

    def remember(self) -> None:
        """Write the record of a composition that is whole: older entries are dropped."""
        self._write(self.noted)

    def _write(self, entries: dict[str, tuple[str, str]]) -> None:
        objects = [[name, *entry] for name, entry in sorted(entries.items())]
        with suppress(OSError):
            self.record.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(self.record, f"{self.record.stem}.new", durable=False) as fresh:
                fresh.write_text(json.dumps({"out": self.url, "objects": objects}))
