"""The contract of what compositions are written to."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from registry.home import Home
from registry.io.safetensors_writer import Stream
from registry.io.shard_writer import Shard
from registry.progress import Advance

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
"""The files that a reader opens first."""


class ShardWriter(Protocol):
    """Writes files of weights in place of `write_shards`: in other processes."""

    @property
    def at_once(self) -> int:
        """Files that it writes at the same time, 1 or more."""

    def __call__(self, shards: Sequence[Shard], advance: Advance) -> list[str]:
        """Write files, and return the tree digest of each."""


class OpenDestination(ABC):
    """The files of a composition that is being written."""

    @abstractmethod
    def write_weights(
        self, streams: Sequence[Stream], advance: Advance, *, workers: int = 1, writer: ShardWriter | None = None
    ) -> dict[str, str]:
        """Write all tensors as safetensors, in one file or in shards with an index, and return file name → digest.

        Args:
            streams: the tensors.
            advance: receives the bytes written or reused.
            workers: rendering threads (see `write_shards`).
            writer: writes the files in place of `write_shards`.
        """

    @abstractmethod
    def write_files(self, files: Mapping[str, bytes]) -> dict[str, str]:
        """Write small files and return file name → SHA-256."""


class Destination(ABC):
    """Where one composition is written to: a folder, or a prefix of a bucket."""

    @property
    @abstractmethod
    def address(self) -> str:
        """The path or the URL, as it is recorded."""

    @abstractmethod
    def check(self, *, replace: bool) -> None:
        """Check that a composition can be written there, before anything is computed.

        Args:
            replace: an earlier composition may be there.

        Raises:
            OutputError: something else is there, or an earlier composition that may not be replaced.
            StorageError: it cannot be written to.
        """

    @abstractmethod
    def opened(
        self,
        home: Home,
        *,
        replace: bool,
        nbytes: int,
        holds: Collection[str],
        reusable: Sequence[Stream] = (),
    ) -> AbstractContextManager[OpenDestination]:
        """Open it for writing; the composition is there when the context ends, and is not if that raises.

        Args:
            home: the registry's, for records of what was written and for scratch files.
            replace: see `check`.
            nbytes: bytes of the tensors.
            holds: digests of the versions that the content comes from.
            reusable: the tensors, if files of an earlier composition that are unchanged may be taken over.

        Raises:
            OutputError: as `check`; or another process is writing there.
            StorageError: it cannot be written to, or has too little space.
        """
