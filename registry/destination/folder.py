"""Compositions written to a local folder, which appears whole or not at all."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from registry.destination.destination import Destination, OpenDestination, ShardWriter
from registry.home import Home
from registry.io.model_folder import check_output, fresh_folder, layout, write_files, write_weights
from registry.io.safetensors_writer import Stream
from registry.io.shard_reuse import ShardReuse
from registry.progress import Advance


class OpenFolder(OpenDestination):
    """A folder that is being written.

    Args:
        path: an empty folder.
        reuse: shards of the folder that it replaces.
    """

    def __init__(self, path: Path, reuse: ShardReuse | None = None) -> None:
        self._path, self._reuse = path, reuse

    def write_weights(
        self, streams: Sequence[Stream], advance: Advance, *, workers: int = 1, writer: ShardWriter | None = None
    ) -> dict[str, str]:
        """Write all tensors (arguments as `OpenDestination.write_weights`)."""
        return write_weights(self._path, streams, advance, self._reuse, workers=workers, writer=writer)

    def write_files(self, files: Mapping[str, bytes]) -> dict[str, str]:
        """Write small files and return file name → SHA-256."""
        return write_files(self._path, files)


class FolderDestination(Destination):
    """A path on disk, written by `fresh_folder`."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()

    @property
    def address(self) -> str:
        """The absolute path."""
        return str(self._path)

    def check(self, *, replace: bool) -> None:
        """Check the path (errors as `check_output`)."""
        check_output(self._path, replace=replace)

    @contextmanager
    def opened(
        self, home: Home, *, replace: bool, nbytes: int, holds: Collection[str], reusable: Sequence[Stream] = ()
    ) -> Iterator[OpenFolder]:
        """Open the folder (arguments as `Destination.opened`)."""
        reuse = ShardReuse.of(home, self._path) if reusable else None
        reused = sum(shard.nbytes for shard in layout(self._path, reusable) if reuse and reuse.has(shard))
        with fresh_folder(self._path, replace=replace, nbytes=nbytes - reused) as folder:
            yield OpenFolder(folder, reuse)
        if reuse is not None:
            reuse.remember()
