"""The contract of destinations of compositions, and a folder on disk."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from registry.destination.reuse import ShardReuse
from registry.home import Home
from registry.io.model_folder import check_output, fresh_folder, layout, write_files, write_weights
from registry.io.safetensors_file import Stream
from registry.io.shard_writer import Shard, write_shards
from registry.progress import Advance

CONFIG = "config.json"
Render = Callable[[Sequence[Shard], Advance], list[str]]  # writes files of weights, and returns the tree digest of each


class ShardWriter(Protocol):
    """Writes files of weights in place of `write_shards`: in other processes."""

    @property
    def at_once(self) -> int:
        """Files that it writes at the same time, 1 or more."""

    def __call__(self, shards: Sequence[Shard], advance: Advance) -> list[str]: ...


class OpenDestination(ABC):
    """The files of a composition that is being written."""

    @abstractmethod
    def write_weights(
        self, streams: Sequence[Stream], advance: Advance, *, workers: int = 1, writer: ShardWriter | None = None
    ) -> dict[str, str]:
        """Write all tensors as safetensors, in one file or in shards with an index, and return file name → digest.

        `writer` writes the files in place of `write_shards`, which has as many rendering threads as `workers`.
        """

    @abstractmethod
    def write_files(self, files: Mapping[str, bytes]) -> dict[str, str]:
        """Write small files and return file name → SHA-256."""


class Destination(ABC):
    """The folder, or prefix of a bucket, that one composition is written to."""

    address: str
    """The absolute path or the URL, as it is recorded."""

    @abstractmethod
    def check(self, *, replace: bool) -> None:
        """Check that a composition can be written there; with `replace` an earlier one may be there.

        (OutputError: something is there that may not be replaced; StorageError: it cannot be written to.)
        """

    @abstractmethod
    def opened(
        self, home: Home, *, replace: bool, nbytes: int, holds: Collection[str], reusable: Sequence[Stream] = ()
    ) -> AbstractContextManager[OpenDestination]:
        """Open it for writing; the composition is there when the context ends, and is not if that raises.

        Args:
            home: the registry's, for records of what was written and for scratch files.
            nbytes: bytes of the tensors.
            holds: digests of the versions that the content comes from.
            reusable: the tensors, if files of an earlier composition that are unchanged may be taken over.

        Raises:
            OutputError: as `check`; or another process is writing there.
            StorageError: it cannot be written to, or has too little space.
        """


class FolderDestination(Destination):
    """A path on disk, written by `fresh_folder`."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self.address = str(self._path)

    def check(self, *, replace: bool) -> None:
        check_output(self._path, replace=replace)

    @contextmanager
    def opened(
        self, home: Home, *, replace: bool, nbytes: int, holds: Collection[str], reusable: Sequence[Stream] = ()
    ) -> Iterator["OpenFolder"]:
        reuse = ShardReuse(home, self._path) if reusable else None
        reused = sum(shard.nbytes for shard in layout(self._path, reusable) if reuse and reuse.has(shard))
        with fresh_folder(self._path, replace=replace, nbytes=nbytes - reused) as folder:
            yield OpenFolder(folder, reuse)
        if reuse is not None:
            reuse.remember()


class OpenFolder(OpenDestination):
    """A folder that is being written: `path`, which is empty; `reuse` has the files of the folder that it replaces."""

    def __init__(self, path: Path, reuse: ShardReuse | None = None) -> None:
        self._path, self._reuse = path, reuse

    def write_weights(
        self, streams: Sequence[Stream], advance: Advance, *, workers: int = 1, writer: ShardWriter | None = None
    ) -> dict[str, str]:
        write = writer or partial(write_shards, workers=workers)
        return write_weights(self._path, streams, advance, partial(self._write_shards, write))

    def write_files(self, files: Mapping[str, bytes]) -> dict[str, str]:
        return write_files(self._path, files)

    def _write_shards(self, write: Render, shards: Sequence[Shard], advance: Advance) -> list[str]:
        """Link the files that can be reused, write the others, and return the tree digest of each."""
        if self._reuse is None or len(shards) == 1:  # a single file has the routers too, so it always changes
            return write(shards, advance)
        digests = [self._reuse.take(shard) for shard in shards]
        fresh = [shard for shard, digest in zip(shards, digests, strict=True) if digest is None]
        for shard in shards:
            if shard not in fresh:
                advance(shard.nbytes)
        written = iter(write(fresh, advance))
        found = [next(written) if digest is None else digest for digest in digests]
        self._reuse.note(shards, found)
        return found
