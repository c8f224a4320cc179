"""Products W_e G_e of a member's linear maps and the Grams of their inputs, in files: a cache that can be made again.

RegMean needs them (`registry.maths.trunk.regmean`). They depend on one member alone and on this machine's arithmetic,
so a file is named after the digests of the arrays that it was made from and after the arithmetic. Rows are in float64:
G_e W_e loses digits where it is solved, so float32 would not do.

The cache is bounded: files that were not used for long are deleted for new ones. What has no room there, or where the
home cannot be written, is kept in the working folder of the composition for as long as it is used. An opt-out deletes
the whole cache.

Bytes of one member: 8 R H for each linear map of R rows and H inputs, four times its weight in bfloat16.
"""

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from registry.errors import CheckpointError, DamagedError, StorageError
from registry.io.safetensors_header import Entry, read_header
from registry.io.safetensors_writer import Stream, write_shard
from registry.io.torch_blocks import to_block, to_tensor
from registry.maths.trunk.combination import Rows
from registry.maths.trunk.regmean import products
from registry.member import Member
from registry.statistics.cache import FileCache
from store.arrays import Block
from store.digest import json_digest

MOST_BYTES = 2**36
"""Bytes of files in the cache at most, 64 GiB; and at most as many as the disk has left."""

PREFIX = "products-"
"""Begins the names of these files in the cache."""


@dataclass(frozen=True)
class InputProducts:
    """Products of members' linear maps and the Grams of their inputs.

    Safe for several threads.

    Attributes:
        files: the cache; None to keep nothing beyond a composition.
        work: makes a folder for files that are not kept.
    """

    files: FileCache | None = None
    work: Callable[[], str] = mkdtemp

    @contextmanager
    def of(self, member: Member, site: str, layer: int, names: Sequence[str]) -> Iterator[dict[str, Rows]]:
        """Open the products of the maps of one input: name of the map → its rows, float64 (r, H).

        Args:
            member: the member.
            site: the site of their input.
            layer: the layer.
            names: the weights of the maps, in the dense model.

        Raises:
            DamagedError: a stored array is damaged.
            StorageError: the disk is full or refuses.
        """
        links = [member.link("statistics", f"{site}/gram/{layer}"), member.link("statistics", f"{site}/exponents")]
        made_from = [link.digest for link in (*links, *map(member.weight, names))]
        key = PREFIX + json_digest([_arithmetic(), layer, list(names), made_from])
        with ExitStack() as stack:
            found = self._find(key)
            if found is None:
                folder = self.work()
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                fresh = Path(folder) / f"{key}.new"
                _write(fresh, member, site, layer, names)
                found = os.open(fresh, os.O_RDONLY), read_header(fresh).tensors
                self._keep(key, fresh)
            file, tensors = found
            stack.callback(os.close, file)
            yield {name: partial(_few_rows, file, tensors[name]) for name in names}

    def _find(self, key: str) -> tuple[int, dict[str, Entry]] | None:
        """Open a file of the cache: it stays readable if an opt-out empties the cache meanwhile."""
        path = None if self.files is None else self.files.find(key)
        if path is None:
            return None
        try:
            os.utime(path)  # it was used
            return os.open(path, os.O_RDONLY), read_header(path).tensors
        except (OSError, CheckpointError):
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
        for path in self.files.folder.glob(f"{PREFIX}*"):
            with suppress(FileNotFoundError):
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


_KEEPING = Lock()


def _write(path: Path, member: Member, site: str, layer: int, names: Sequence[str]) -> None:
    """Write the products of one input's maps."""
    gram = member.packed_statistics(site, layer).gram  # (H, H)
    streams = [
        Stream(name, "float64", member.weight(name).shape, partial(_blocks, member, name, gram)) for name in names
    ]
    try:
        write_shard(path, streams)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}", "free some space, or choose --trunk mean"
        ) from error


def _blocks(member: Member, name: str, gram: Float[Tensor, "H H"]) -> Iterator[Block]:
    source = member.open_weight(name)
    return map(to_block, products((to_tensor(block, source.dtype) for block in source.blocks()), gram))


def _few_rows(file: int, entry: Entry, start: int, stop: int) -> Float[Tensor, "r H"]:
    """Return some rows of a tensor of an open file: read, not mapped, so that they leave the memory after their use."""
    found = torch.empty((stop - start, *entry.shape[1:]), dtype=torch.float64)
    rest, at = found.numpy().data.cast("B"), entry.begin + 8 * start * math.prod(entry.shape[1:])
    while rest:
        if not (read := os.preadv(file, [rest], at)):
            raise DamagedError("a file of the cache ends early", "repeat the command: the file is made again")
        rest, at = rest[read:], at + read
    return found


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
