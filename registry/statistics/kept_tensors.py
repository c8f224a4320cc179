"""Float64 tensors in files that can be made again: a bounded cache of what compositions compute from stored arrays.

A file's key is the digest of everything that its bits depend on: the digests of the arrays that it was made from, the
factors that they entered with, and this machine's arithmetic. So a file is right or absent, and never out of date.

The cache is bounded: files that were not used for long are deleted for new ones. What has no room there, or where the
home cannot be written, is kept in the working folder of the composition for as long as it is used. An opt-out deletes
the whole cache.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from threading import Lock
from typing import Any

import torch

from registry.errors import CheckpointError, StorageError
from registry.io.safetensors_file import Stream, read_header, write_shard
from registry.statistics.cache import FileCache
from registry.statistics.open_tensors import OpenTensors
from store.digest import json_digest

MOST_BYTES = 2**36
"""Bytes of files in the cache at most, 64 GiB; and at most as many as the disk has left."""

PRODUCTS, SUMS, MAPS = "products-", "sums-", "maps-"
"""Begin the names of these files in the cache: one member's products, a subset's sums, a subset's solved maps."""

PREFIXES = (PRODUCTS, SUMS, MAPS)

_KEEPING = Lock()


@dataclass(frozen=True)
class KeptTensors:
    """Files of tensors. Safe for several threads.

    Attributes:
        files: the cache; None to keep nothing beyond a composition.
        work: makes a folder for files that are not kept.
    """

    files: FileCache | None = None
    work: Callable[[], str] = mkdtemp

    @contextmanager
    def opened(self, prefix: str, made_from: Any, streams: Callable[[], list[Stream]]) -> Iterator[OpenTensors]:
        """Open the file of some tensors, which is made where the cache has no intact one.

        Args:
            prefix: one of `PREFIXES`.
            made_from: what the bits depend on beside this machine's arithmetic, as JSON.
            streams: returns the tensors, float64, by which the file is made.

        Raises:
            StorageError: the disk is full or refuses.
        """
        key = prefix + json_digest([_arithmetic(), made_from])
        with ExitStack() as stack:
            found = self._find(key)
            if found is None:
                folder = self.work()
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                fresh = Path(folder) / f"{key}.new"
                _write(fresh, streams())
                found = OpenTensors(os.open(fresh, os.O_RDONLY), read_header(fresh).tensors)
                self._keep(key, fresh)
            stack.callback(os.close, found.file)
            yield found

    def _find(self, key: str) -> OpenTensors | None:
        """Open a file of the cache."""
        path = None if self.files is None else self.files.find(key)
        if path is None:
            return None
        with suppress(OSError, CheckpointError):
            os.utime(path)  # it was used
            return OpenTensors(os.open(path, os.O_RDONLY), read_header(path).tensors)
        return None

    def _keep(self, key: str, fresh: Path) -> None:
        """Move a file into the cache, if it has room there and the home can be written."""
        if self.files is None:
            return
        with _KEEPING, suppress(OSError, StorageError):
            if self._make_room(fresh):
                self.files.keep(key, fresh)

    def _make_room(self, fresh: Path) -> bool:
        """Delete files that were not used for long until a new one has room, and tell whether it has."""
        assert self.files is not None
        nbytes = fresh.stat().st_size
        kept = []
        for path in self.files.folder.glob("*"):
            with suppress(FileNotFoundError):
                if path.name.startswith(PREFIXES):
                    status = path.stat()
                    kept.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in kept)
        room = min(MOST_BYTES, (total + shutil.disk_usage(fresh.parent).free) // 2)
        if nbytes > room:
            return False
        for _, size, path in sorted(kept):
            if total + nbytes <= room:
                break
            path.unlink(missing_ok=True)
            total -= size
        return True


def _write(path: Path, streams: list[Stream]) -> None:
    try:
        write_shard(path, streams)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}", "free some space, or choose --trunk mean"
        ) from error


@cache
def _arithmetic() -> str:
    """Return what the last bits of a product of matrices depend on, beside its factors."""
    capabilities: Any = getattr(torch.cpu, "get_capabilities", dict)()
    chosen = {name: value for name, value in os.environ.items() if name.startswith(("MKL_", "OPENBLAS_"))}
    threads = ("MKL_NUM_THREADS", "MKL_DYNAMIC", "OPENBLAS_NUM_THREADS")
    return json_digest(
        [
            torch.__version__,
            torch.backends.cpu.get_cpu_capability(),
            {name: str(value) for name, value in capabilities.items() if not name.startswith("num_")},
            {name: value for name, value in chosen.items() if name not in threads},
        ]
    )
