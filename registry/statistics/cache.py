"""The cache of what compositions compute: files named after the digest of their inputs, which can be made again.

A file's name ends with the SHA-256 of its bytes, so that a damaged file is detected and made again. An opt-out deletes
all of them. Writing to the cache and emptying it exclude each other, and a writer first checks that no version it used
was opted out meanwhile.

Besides statistics it holds float64 tensors (`KeptTensors`), with which compositions have the same bytes as without:
products of one member, sums and solved maps of a subset. Their key is the digest of everything that the bits depend on:
the digests of the arrays that they were made from, the factors that these entered with, and this machine's arithmetic.
They are bounded: files that were not used for long are deleted for new ones. What has no room, or where the home cannot
be written, is kept in the working folder of the composition for as long as it is used.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import mkdtemp
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from registry.errors import CheckpointError, DamagedError, StorageError
from registry.io.disk import file_digest
from registry.io.safetensors_file import Stream, write_shard
from registry.io.torch_blocks import to_block, to_tensor
from registry.maths.statistics import GramSum, gram_sum
from registry.maths.trunk.combination import Rows
from registry.maths.trunk.regmean import products
from registry.member import Member
from registry.statistics import file as statistics_file
from registry.statistics.file import Collected, OpenTensors
from store.arrays import Block
from store.digest import json_digest


@dataclass(frozen=True)
class FileCache:
    """Files in one folder, each named after a key and the SHA-256 of its bytes.

    Attributes:
        putting: returns the context in which a file is moved into the folder; it raises if that is not allowed.
    """

    folder: Path
    staging: Path | None = None  # the folder that statistics are written to first; default the folder itself
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

        (OSError: the folder cannot be written; ConflictError: a version that it comes from was opted out meanwhile.)
        """
        path = self.folder / f"{key}.{file_digest(fresh)}.safetensors"
        with self.putting():
            self.folder.mkdir(parents=True, exist_ok=True)
            fresh.replace(path)
        return path

    def get(self, key: str) -> Collected | None:
        """Return the statistics with a digest, or None if the cache has no intact file of them."""
        if (path := self.find(key)) is not None:
            with suppress(CheckpointError):
                return statistics_file.load(path)
        return None

    def put(self, key: str, collected: Collected) -> Collected:
        """Write statistics to the cache under a digest, and return them as they are in the file.

        (StorageError: the disk is full or refuses; ConflictError: a version of theirs was opted out meanwhile.)
        """
        staging = self.staging or self.folder
        staging.mkdir(parents=True, exist_ok=True)
        fresh = staging / f"{key}.new"
        statistics_file.save(fresh, collected)
        opened = statistics_file.load(fresh)  # it stays readable if an opt-out empties the cache meanwhile
        self.keep(key, fresh)
        return opened


MOST_BYTES = 2**36  # bytes of files in the cache at most, 64 GiB; and at most as many as the disk has left

PRODUCTS, SUMS, MAPS = "products-", "sums-", "maps-"
"""Begin the names of these files in the cache: one member's products, a subset's sums, a subset's solved maps."""

PREFIXES = (PRODUCTS, SUMS, MAPS)

NumberedBlock = tuple[int, Tensor]
"""The number of a map among those that are solved together, and a block of its rows, (r, H)."""

ROWS = 512  # rows of a map that are read at once

_KEEPING = Lock()


@dataclass(frozen=True)
class KeptTensors:
    """Files of products, sums and maps. Safe for several threads; `work` makes a folder for files that are not kept.

    Bytes of one layer: 8 R H for the product or the map of R rows and H inputs, 4 H (H + 1) for the Grams of one site.
    """

    files: FileCache | None = None
    work: Callable[[], str] = mkdtemp

    @contextmanager
    def products(self, member: Member, site: str, layer: int, names: Sequence[str]) -> Iterator[dict[str, Rows]]:
        """Open the products W_e G_e of a member's linear maps and the Gram of their input: name → rows (r, H), float64.

        RegMean needs them (`registry.maths.trunk.regmean`); in float32, G_e W_e would lose digits where it is solved
        (DamagedError: a stored array is damaged; StorageError: the disk is full or refuses).
        """

        def streams() -> list[Stream]:
            gram = member.packed_statistics(site, layer).gram  # (H, H)
            return [
                Stream(name, "float64", member.weight(name).shape, partial(_product, member, name, gram))
                for name in names
            ]

        made_from = [layer, list(names), arrays_of(member, site, layer, names)]
        with self._opened(PRODUCTS, made_from, streams) as tensors:
            yield {name: partial(tensors.rows, name) for name in names}

    def keeps(self, weights: Sequence[float]) -> bool:
        """Tell whether sums with these factors are kept: where members count alike; others are mostly tried once."""
        return self.files is not None and len(set(weights)) == 1

    def gram(self, members: Sequence[Member], site: str, layer: int, weights: Sequence[float]) -> GramSum:
        """Return the weighted sum of the members' Grams at one site and layer, for the caller to overwrite.

        A kept sum is read once, for routers of any λ, where adding takes longer the more members there are
        (IncompatibleError: a member was registered without these statistics; DamagedError: a stored array is damaged).
        """
        for member in members:
            member.require_statistics([site], "this", "needs")

        def compute() -> GramSum:
            # A generator: a Gram is (H + 1, H + 1), and only one member's needs to be in memory.
            return gram_sum((member.packed_statistics(site, layer) for member in members), weights)

        if not self.keeps(weights):
            return compute()
        fresh: list[GramSum] = []

        def streams() -> list[Stream]:
            fresh.append(compute())
            return _sum_streams(fresh[0])

        made_from = [layer, [arrays_of(member, site, layer) for member in members], list(weights)]
        with ExitStack() as stack:
            tensors = _unless_full(stack, self._opened(SUMS, made_from, streams))
            if fresh or tensors is None:
                return fresh[0] if fresh else compute()
            size, experts = tensors.entries["moments"].shape
            gram, moments = (torch.empty((size, width), dtype=torch.float64) for width in (size, experts))
            tensors.fill("moments", 0, moments)
            begin = 0
            for row in range(size):
                tensors.fill("gram", begin, gram[row, row:])
                begin += size - row
        return GramSum(gram, moments)

    def maps(
        self,
        shapes: Sequence[tuple[int, ...]],
        made_from: Any,
        solve: Callable[[int], Iterator[NumberedBlock]],
        first: int = 0,
    ) -> Iterator[NumberedBlock]:
        """Yield the rows of linear maps that are solved together, each with the number of its map, in their order.

        Args:
            shapes: the shape of each map, (R, H).
            made_from: what their bits depend on besides this machine's arithmetic, as JSON.
            solve: yields the same, float64, from the map of a number on, without the cache; its errors are raised.
        """

        def streams() -> list[Stream]:
            solved = groupby(solve(0), key=itemgetter(0))
            return [Stream(name, "float64", shape, lambda: _next(solved)) for name, shape in named]

        named = [(f"{number:06d}", shape) for number, shape in enumerate(shapes)]  # tensors are written by name
        with ExitStack() as stack:
            tensors = _unless_full(stack, self._opened(MAPS, made_from, streams))
            if tensors is None:
                yield from solve(first)
                return
            for number, (name, (height, *_)) in enumerate(named[first:], start=first):
                for start in range(0, height, ROWS):
                    yield number, tensors.rows(name, start, min(start + ROWS, height))

    @contextmanager
    def _opened(self, prefix: str, made_from: Any, streams: Callable[[], list[Stream]]) -> Iterator[OpenTensors]:
        """Open the file of some tensors, which is made of `streams` where the cache has no intact one."""
        key = prefix + json_digest([_arithmetic(), made_from])
        with ExitStack() as stack:
            if (found := self._find(key)) is None:
                folder = self.work()
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                fresh = Path(folder) / f"{key}.new"
                try:
                    write_shard(fresh, streams())
                except OSError as error:
                    hint = "free some space, or choose --trunk mean"
                    raise StorageError(f"{fresh} cannot be written: {error.strerror or error}", hint) from error
                found = OpenTensors.open(fresh)
                if self.files is not None:
                    with _KEEPING, suppress(OSError, StorageError):
                        if _make_room(self.files.folder, fresh):
                            self.files.keep(key, fresh)
            yield found

    def _find(self, key: str) -> OpenTensors | None:
        if self.files is not None and (path := self.files.find(key)) is not None:
            with suppress(OSError, CheckpointError):
                os.utime(path)  # it was used
                return OpenTensors.open(path)
        return None


def _make_room(folder: Path, fresh: Path) -> bool:
    """Delete files that were not used for long until a new one has room, and tell whether it has."""
    nbytes = fresh.stat().st_size
    kept = []
    for path in folder.glob("*"):
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


@cache
def _arithmetic() -> str:
    """Return what the last bits of a product of matrices depend on, besides its factors."""
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


def arrays_of(member: Member, site: str, layer: int, names: Sequence[str] = ()) -> list[str]:
    """Return the digests of the arrays of one site and layer's Gram, and of some weights."""
    links = [member.link("statistics", f"{site}/gram/{layer}"), member.link("statistics", f"{site}/exponents")]
    return [link.digest for link in (*links, *map(member.weight, names))]


def _product(member: Member, name: str, gram: Float[Tensor, "H H"]) -> Iterator[Block]:
    source = member.source(name)
    return map(to_block, products((to_tensor(block, source.dtype) for block in source.blocks()), gram))


def _unless_full(stack: ExitStack, opened: AbstractContextManager[OpenTensors]) -> OpenTensors | None:
    """Open a file of tensors for as long as the stack lasts; None if the disk is full or refuses."""
    try:
        return stack.enter_context(opened)
    except (OSError, StorageError):
        return None


def _sum_streams(total: GramSum) -> list[Stream]:
    """Return a sum as tensors of a file: the upper triangle row by row, (H (H + 1) / 2,), and the moments, (H, E)."""
    size = len(total.gram)
    rows = (total.gram[row, row:] for row in range(size))
    return [
        Stream("gram", "float64", (size * (size + 1) // 2,), lambda: map(to_block, rows)),
        Stream.of("moments", to_block(total.moments), "float64"),
    ]


def _next(solved: Iterator[tuple[int, Iterator[NumberedBlock]]]) -> Iterator[Block]:
    """Yield the rows of the map that comes next."""
    _, blocks = next(solved)
    yield from (to_block(rows) for _, rows in blocks)
