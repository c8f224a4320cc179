"""Statistics that compositions took and may want again: files under the digest of what they are a function of.

A file's name ends with the SHA-256 of its bytes, so that a damaged one is found out and taken again. Nothing here is
needed: every file can be made anew, and all go when a version is opted out. What a composition takes that an opt-out
overtakes is not put there: putting and emptying exclude one another, and who puts looks first whether it still may.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from registry.errors import DamagedError
from registry.io.hashing import file_digest
from registry.maths.statistics import Statistics, complete_folds
from registry.statistics import file as statistics_file
from registry.statistics.file import Collected


@dataclass(frozen=True)
class Cached:
    """Statistics in a file, read layer by layer.

    Attributes:
        path: where it was put.
        file: the file, open: an opt-out that empties the cache meanwhile does not matter to who reads.
    """

    path: Path
    file: Any

    @classmethod
    def open(cls, path: Path) -> "Cached":
        """Open a file.

        Raises:
            DamagedError: it is not there.
        """
        from safetensors import safe_open

        try:
            return cls(path, safe_open(path, framework="pt"))
        except OSError as error:
            raise DamagedError(f"{path} is gone", "repeat the command: it is made again") from error

    def statistics(self, site: str, layer: int) -> Statistics:
        """Return the statistics of one site and layer."""
        return self._read(site, layer)[0]

    def folds(self, site: str, layer: int) -> tuple[Statistics, ...]:
        """Return the statistics of one site and layer, in parts."""
        return complete_folds(*self._read(site, layer))

    def _read(self, site: str, layer: int) -> tuple[Statistics, tuple[Statistics, ...]]:
        exponents = self.file.get_tensor(f"{site}.exponents")[layer].clone()
        total = Statistics.unpack(self.file.get_tensor(f"{site}.gram.{layer}"), exponents)
        return total, statistics_file.folds_of(self.file, site, layer, exponents)


@dataclass(frozen=True)
class StatisticsCache:
    """Files of statistics in one folder.

    Attributes:
        folder: where they are.
        staging: where they are written first; the folder itself by default.
        putting: gives the context in which a file is put into the folder; it raises where it may not be.
    """

    folder: Path
    staging: Path | None = None
    putting: Callable[[], AbstractContextManager[object]] = nullcontext

    def get(self, key: str) -> Cached | None:
        """Return what is there under a digest, if it is whole."""
        for path in sorted(self.folder.glob(f"{key}.*.safetensors")):
            with suppress(FileNotFoundError, DamagedError):  # an opt-out has just emptied the cache
                if path.name.split(".")[1] == file_digest(path):
                    return Cached.open(path)
                path.unlink(missing_ok=True)
        return None

    def put(self, key: str, collected: Collected) -> Cached:
        """Write statistics down under a digest, and return them.

        Raises:
            StorageError: the disk is full or refuses.
            ConflictError: what they are of was opted out meanwhile.
        """
        staging = self.staging or self.folder
        staging.mkdir(parents=True, exist_ok=True)
        fresh = staging / f"{key}.new"
        statistics_file.save(fresh, collected)
        path = self.folder / f"{key}.{file_digest(fresh)}.safetensors"
        cached = Cached.open(fresh)
        with self.putting():
            self.folder.mkdir(parents=True, exist_ok=True)
            fresh.replace(path)
        return replace(cached, path=path)
