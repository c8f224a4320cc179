"""A cache of statistics that compositions collected: files named after the digest of their inputs.

A file's name ends with the SHA-256 of its bytes, so that a damaged file is detected and its statistics are collected
again. Every file can be recomputed, and an opt-out deletes all of them. Writing to the cache and emptying it exclude
each other, and a writer first checks that no version it used was opted out meanwhile.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import safe_open

from registry.errors import DamagedError
from registry.io.hashing import file_digest
from registry.maths.statistics import PackedStatistics, Statistics
from registry.statistics import file as statistics_file
from registry.statistics.file import Collected


@dataclass(frozen=True)
class Cached:
    """Statistics in a file, read layer by layer.

    Attributes:
        file: the open file; it stays readable if an opt-out empties the cache meanwhile.
    """

    path: Path
    file: Any

    @classmethod
    def open(cls, path: Path) -> "Cached":
        """Open a file.

        Raises:
            DamagedError: the file does not exist.
        """
        try:
            return cls(path, safe_open(path, framework="pt"))
        except OSError as error:
            raise DamagedError(f"{path} is gone", "repeat the command: it is made again") from error

    def statistics(self, site: str, layer: int) -> Statistics:
        """Return the statistics of one site and layer."""
        return self.packed_statistics(site, layer).unpacked()

    def packed_statistics(self, site: str, layer: int) -> PackedStatistics:
        """Return the statistics of one site and layer as they are stored."""
        exponents = self.file.get_tensor(f"{site}.exponents")[layer].clone()
        return PackedStatistics(self.file.get_tensor(f"{site}.gram.{layer}"), exponents)


@dataclass(frozen=True)
class FileCache:
    """Files in one folder, each named after a key and the SHA-256 of its bytes.

    Attributes:
        staging: the folder that files are written to first; default the folder itself.
        putting: returns the context in which a file is moved into the folder; it raises if that is not allowed.
    """

    folder: Path
    staging: Path | None = None
    putting: Callable[[], AbstractContextManager[object]] = nullcontext

    def find(self, key: str) -> Path | None:
        """Return the path of the intact file with a key, or None; a damaged one is deleted."""
        for path in sorted(self.folder.glob(f"{key}.*.safetensors")):
            with suppress(FileNotFoundError, DamagedError):  # an opt-out has just emptied the cache
                if path.name.split(".")[1] == file_digest(path):
                    return path
                path.unlink(missing_ok=True)
        return None

    def keep(self, key: str, fresh: Path) -> Path:
        """Move a file into the folder, and return its path there.

        Raises:
            OSError: the folder cannot be written.
            ConflictError: a version that it comes from was opted out meanwhile.
        """
        path = self.folder / f"{key}.{file_digest(fresh)}.safetensors"
        with self.putting():
            self.folder.mkdir(parents=True, exist_ok=True)
            fresh.replace(path)
        return path


@dataclass(frozen=True)
class StatisticsCache(FileCache):
    """Files of statistics in one folder."""

    def get(self, key: str) -> Cached | None:
        """Return the statistics with a digest, or None if the cache has no intact file of them."""
        if (path := self.find(key)) is not None:
            with suppress(DamagedError):
                return Cached.open(path)
        return None

    def put(self, key: str, collected: Collected) -> Cached:
        """Write statistics to the cache under a digest, and return them.

        Raises:
            StorageError: the disk is full or refuses.
            ConflictError: a version that they come from was opted out meanwhile.
        """
        staging = self.staging or self.folder
        staging.mkdir(parents=True, exist_ok=True)
        fresh = staging / f"{key}.new"
        statistics_file.save(fresh, collected)
        cached = Cached.open(fresh)  # the open file stays readable if an opt-out empties the cache meanwhile
        return replace(cached, path=self.keep(key, fresh))
