"""Compositions written to a prefix of a bucket, shard by shard.

Objects cannot be renamed, so a composition appears by its last object, `composition.json`. The order is:

1. `composition.partial.json` says that the prefix is being written, and by whom.
2. `composition.json`, `config.json` and the index of an earlier composition are deleted: from here on nothing loads.
3. Each shard is rendered into a scratch folder of the home, uploaded in parts, read back by ranges and compared with
   its tree digest, and deleted locally. So the disk does not depend on the number of shards, and memory hardly: it was
   118 MB above that of torch for 130 MB written, 151 MB for 1,376 MB.
4. Small files; objects of the earlier composition that the new one does not have are deleted.
5. The index, `config.json`, and `composition.json`; each is read back too. `composition.partial.json` is deleted.

Whatever interrupts this leaves no `composition.json`. Unless the storage failed or the user interrupted, all that was
written is deleted then: a member may have been opted out meanwhile. The next composition to the prefix takes over the
shards that are there already: those whose origin the home's record knows without rendering them, others if they come to
the same digest. In either case the bytes in the bucket are read for it.

Two writers of one registry exclude one another: by a lock of the home, and by one of the catalog if that is in
PostgreSQL. If two registries write to one prefix, the later one takes it over (with --force only), and the earlier one
finds that out before its next object, and stops.
"""

import hashlib
import json
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from registry.destination.destination import CONFIG, Destination, OpenDestination, Render, ShardWriter
from registry.destination.reuse import UploadedShards
from registry.errors import CheckpointError, DamagedError, OutputError, StorageError
from registry.home import Home
from registry.io.model_folder import INDEX, MARKER, index_file, layout, not_composed
from registry.io.process import map_large_blocks, return_freed_memory
from registry.io.safetensors_file import Stream
from registry.io.shard_writer import Shard, write_shards
from registry.io.tree_digest import TreeHash
from registry.io.work_dirs import working_folder
from registry.progress import Advance
from store.bucket import PROBE, Bucket

PARTIAL = "composition.partial.json"  # says that a composition is being written, or was interrupted
LAST = (INDEX, CONFIG, MARKER)  # written last and deleted first, in reverse: what a reader opens to find the rest
_MAPPED = 2**20  # bytes from which on memory is returned when it is freed; parts of uploads have 8 MiB
_OTHER = "name another prefix with --out"


class BucketDestination(Destination):
    """A prefix of a bucket, by its URL in its recorded form."""

    def __init__(self, url: str) -> None:
        self._bucket = Bucket(url)
        self.address = self._bucket.url

    def check(self, *, replace: bool) -> None:
        self._check_content(replace=replace)
        self._bucket.check_writable()

    def _check_content(self, *, replace: bool) -> set[str]:
        """Return the objects at the prefix, if a composition may be written there."""
        url, (sizes, below) = self.address, self._bucket.listed()
        names = {name for name in sizes if not name.startswith(PROBE)}
        if below:
            raise OutputError(f"{url} holds other objects, below {below[0]}/", _OTHER)
        if MARKER in names and not replace:
            raise OutputError(f"{url} holds a composition", f"{_OTHER}, or replace that composition: --force")
        if names and not names & {MARKER, PARTIAL}:
            raise OutputError(not_composed(url), _OTHER)
        return names

    @contextmanager
    def opened(
        self, home: Home, *, replace: bool, nbytes: int, holds: Collection[str], reusable: Sequence[Stream] = ()
    ) -> Iterator["OpenBucket"]:
        found = self._check_content(replace=replace)
        with working_folder(home.work, holds) as scratch:
            opened = OpenBucket(self._bucket, home, scratch)
            opened.claim(found, replace=replace)
            try:
                yield opened
                opened.commit()
            except BaseException as error:
                with suppress(StorageError):
                    opened.leave(resumable=isinstance(error, StorageError) or not isinstance(error, Exception))
                raise


class OpenBucket(OpenDestination):
    """A prefix that is being written, and claimed; shards are rendered into the folder `scratch`."""

    def __init__(self, bucket: Bucket, home: Home, scratch: Path) -> None:
        self._bucket, self._known, self._scratch = bucket, UploadedShards(home, bucket.url), scratch
        # What tells a registry from others, without naming it: the digest of its database's URL and its path.
        self._home = hashlib.sha256(f"{home.database}\n{home.path}".encode()).hexdigest()[:32]
        self._mark = json.dumps({"home": self._home, "writer": uuid.uuid4().hex}).encode()
        self._there: dict[str, int] = {}
        self._names: set[str] = set()
        self._held: dict[str, bytes] = {}
        map_large_blocks(_MAPPED)

    def claim(self, found: Collection[str], *, replace: bool) -> None:
        """Claim the prefix, unless another registry does, and delete what an earlier composition is found by."""
        if PARTIAL not in found and not self._bucket.create(PARTIAL, self._mark):
            raise self._taken("has just begun to write there")
        if PARTIAL in found:
            if not replace and _home_of(self._bucket.read(PARTIAL)) not in (None, self._home):
                raise OutputError(
                    f"{self._bucket.url} is being written by another registry, or its writing was interrupted",
                    f"{_OTHER}, or if nobody writes there, take it over: --force",
                )
            self._bucket.write(PARTIAL, self._mark)
        self._bucket.delete(name for name in reversed(LAST) if name in found)
        self._there, _ = self._bucket.listed()

    def leave(self, *, resumable: bool) -> None:
        """Give up a composition that failed: what was uploaded stays for the next run if it is `resumable`."""
        names = set(self._bucket.listed()[0])
        if self._bucket.read(PARTIAL) == self._mark and not (resumable and names - {PARTIAL}):
            self._bucket.delete([*sorted(names - {PARTIAL}), PARTIAL])

    def write_weights(
        self, streams: Sequence[Stream], advance: Advance, *, workers: int = 1, writer: ShardWriter | None = None
    ) -> dict[str, str]:
        # Shards are on the disk one after another; with a `writer`, as many at once as it writes.
        shards, digests = layout(self._scratch, streams), dict[str, str]()
        largest = max(len(shard.head) + shard.nbytes for shard in shards)
        if (free := shutil.disk_usage(self._scratch).free) < largest:
            raise StorageError(
                f"{self._scratch} needs {largest:,} bytes for the largest file, its disk has {free:,} free",
                "free some space, or move the registry's home to a larger disk",
            )
        render = writer or partial(write_shards, flush=False, workers=workers)
        at_once = writer.at_once if writer else 1
        for first in range(0, len(shards), at_once):
            digests |= self._write_shards(shards[first : first + at_once], advance, render)
        return digests | self.write_files(index_file(shards))

    def write_files(self, files: Mapping[str, bytes]) -> dict[str, str]:
        for name, data in files.items():
            self._names.add(name)
            if name in LAST:  # kept until `commit`
                self._held[name] = data
            else:
                self._check_claim()
                self._bucket.write(name, data)
        return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}

    def commit(self) -> None:
        """Delete what is left of an earlier composition, and write what makes the new one readable."""
        self._check_claim()
        self._bucket.delete(sorted({*self._bucket.listed()[0]} - self._names - {PARTIAL}))
        for name in LAST:
            if name in self._held:
                self._check_claim()
                self._bucket.write(name, self._held[name])
        try:
            self._check_claim()
        except OutputError:  # between the check and the write
            self._bucket.delete([MARKER])
            raise
        self._bucket.delete([PARTIAL])
        self._known.remember()

    def _check_claim(self) -> None:
        if self._bucket.read(PARTIAL) != self._mark:
            raise self._taken("has taken it over")

    def _taken(self, what: str) -> OutputError:
        return OutputError(f"{self._bucket.url}: another process {what}", f"repeat when it has ended, or {_OTHER}")

    def _write_shards(self, shards: Sequence[Shard], advance: Advance, render: Render) -> dict[str, str]:
        """Bring shards to the bucket unless they are there, and return file name → tree digest."""
        self._check_claim()
        done, missing = dict[str, str](), list[Shard]()
        for shard in shards:
            self._names.add(shard.path.name)
            expected = self._known.digest_of(shard) if self._is_there(shard) else None
            if expected is not None and self._digest(shard) == expected:
                advance(shard.nbytes)
                done[shard.path.name] = expected
            else:
                missing.append(shard)
        try:
            for shard, digest in zip(missing, render(missing, advance), strict=True):
                self._upload(shard, digest)
                done[shard.path.name] = digest
        finally:
            return_freed_memory()  # parts leave as much behind as is in use, and more with every shard
            for shard in missing:
                shard.path.unlink(missing_ok=True)
        for shard in shards:
            self._known.note(shard, done[shard.path.name])
        return done

    def _upload(self, shard: Shard, digest: str) -> None:
        """Upload a shard that was rendered, unless the same bytes are there."""
        name = shard.path.name
        if self._is_there(shard) and self._known.digest_of(shard) is None and self._digest(shard) == digest:
            return
        self._check_claim()
        self._bucket.upload(name, shard.path)
        if self._digest(shard) != digest:
            raise DamagedError(
                f"{self._bucket.url}/{name}: the bytes read back are not the bytes written",
                "check the bucket, then repeat the command",
            )

    def _is_there(self, shard: Shard) -> bool:
        return self._there.get(shard.path.name) == len(shard.head) + shard.nbytes

    def _digest(self, shard: Shard) -> str | None:
        """Return the tree digest of a shard's object, read from the bucket; None if it is no safetensors file."""
        name, size = shard.path.name, len(shard.head) + shard.nbytes
        state = TreeHash(Path(name), size)
        try:
            for part in self._bucket.ranges(name, size):
                state.update(memoryview(part))
            return state.hexdigest()
        except CheckpointError:
            return None


def _home_of(mark: bytes | None) -> str | None:
    try:
        return str(json.loads(mark or b"")["home"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
