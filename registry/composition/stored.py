"""Stored arrays as the tensors of a folder, their own bytes wherever these can be copied, and dense folders of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from registry.checkpoint.joint_training import joint_trainings
from registry.checkpoint.model_files import own_files
from registry.checkpoint.version_files import ADAPTER
from registry.composition.manifest import ComposedFolder, registered_versions
from registry.errors import InvalidInputError
from registry.families.sites import MLP_INPUT
from registry.hosts import RowSelection
from registry.io.model_folder import fresh_folder, write_files, write_weights
from registry.io.safetensors_file import Span, Stream, write_shard
from registry.io.torch_blocks import to_block, to_tensor, torch_dtype
from registry.maths.trunk.combination import Pass, RowBlock, average
from registry.member import Member, load_member
from registry.progress import Progress, remark
from registry.workspace import Workspace
from store.arrays import ArraySource, Block, blocks_of_rows
from store.catalog import ArrayLink
from store.catalog.records import Role


def held(blocks: Iterable[Block], dtype: str, name: str) -> Iterator[Block]:
    """Yield blocks of a cast tensor in its carrier (InvalidInputError: float16 makes infinity beyond 65,504)."""
    for block in blocks:
        if dtype == "float16" and not np.isfinite(block).all():
            raise InvalidInputError(
                f"tensor {name} has a weight that float16 cannot hold, beyond {np.finfo(np.float16).max:,.0f}",
                "choose a dtype of the same range: --dtype bfloat16",
            )
        yield block


def span(source: ArraySource, rows: RowSelection, dtype: str) -> Span | None:
    """Return the bytes of some rows in their array's files; None if they are cast, reordered or not stored plainly."""
    raw = source.raw
    if raw is None or source.dtype != dtype:
        return None
    if rows.rows is None:
        return Span(raw, 0, source.nbytes)
    if isinstance(rows.rows, range) and rows.rows.step == 1:  # rows that follow one another in the file
        width = raw.layout.row_bytes
        return Span(raw, rows.rows.start * width, rows.rows.stop * width)
    return None


def copied(source: ArraySource, rows: RowSelection, dtype: str) -> Iterator[Block]:
    """Yield rows of a tensor: the bytes of its array, cast only if its dtype differs."""
    if rows.rows is None and source.dtype == dtype:
        yield from source.blocks()
    else:
        blocks = (to_tensor(block, source.dtype) for block in source.blocks())
        cast = (to_block(tensor.to(torch_dtype(dtype))) for tensor in selected(blocks, rows))
        yield from held(cast, dtype, rows.name)


def stored_stream(
    name: str, dtype: str, shape: tuple[int, ...], opened: Callable[[], ArraySource], array: str = ""
) -> Stream:
    """Return a whole array as a tensor of a folder.

    Args:
        dtype: its dtype; the array is cast where it has another.
        opened: returns the array, for each reading.
        array: its name, where it is another.
    """
    rows = RowSelection(array or name)

    def spans() -> list[Span] | None:
        one = span(opened(), rows, dtype)
        return None if one is None else [one]

    return Stream(name, dtype, shape, lambda: copied(opened(), rows, dtype), spans)


@dataclass(frozen=True)
class Stored:
    """An array of a version, by role and name, as it is stored; cast where another dtype is wanted."""

    member: Member
    role: Role
    array: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.member.link(self.role, self.array).shape

    def stream(self, name: str, dtype: str) -> Stream:
        """Return it as it is written."""
        return stored_stream(name, dtype, self.shape, partial(self.member.open, self.role, self.array), self.array)


@dataclass(frozen=True)
class Stacked:
    """An array of every member, one after the other along a new first axis."""

    members: tuple[Member, ...]
    role: Role
    array: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, (E, …)."""
        return (len(self.members), *self.members[0].link(self.role, self.array).shape)

    def stream(self, name: str, dtype: str) -> Stream:
        """Return it as it is written."""
        return Stream(name, dtype, self.shape, self._blocks)

    def _blocks(self) -> Iterator[Block]:
        for member in self.members:
            for block in member.open(self.role, self.array).blocks():
                yield block[None]


@dataclass(frozen=True)
class Computed:
    """A tensor that a function returns, whole, as a torch tensor of any floating dtype."""

    shape: tuple[int, ...]
    compute: Callable[[], Any]

    def stream(self, name: str, dtype: str) -> Stream:
        """Return it as it is written."""

        def blocks() -> Iterator[Block]:
            yield from held([to_block(self.compute().to(torch_dtype(dtype)))], dtype, name)

        return Stream(name, dtype, self.shape, blocks)


def selected(
    blocks: Iterator[Float[torch.Tensor, "r ..."]], rows: RowSelection
) -> Iterator[Float[torch.Tensor, "r ..."]]:
    """Yield selected rows of a tensor in their order; all of it is read, so that its digest is checked."""
    if rows.rows is None:
        yield from blocks
    elif isinstance(rows.rows, range):
        start = 0
        for block in blocks:
            selected = block[max(rows.rows.start - start, 0) : max(rows.rows.stop - start, 0)]
            start += len(block)
            if len(selected):
                yield selected
    else:
        yield torch.cat(list(blocks))[list(rows.rows)]  # the whole tensor at once: any row may come first


def in_file(blocks: Iterable[Float[torch.Tensor, "r w"]]) -> Float[torch.Tensor, "R w"]:
    """Return blocks of rows as one tensor whose numbers are in a temporary file, read when they are used."""
    with TemporaryFile() as file:
        for rows in blocks:
            file.write(to_block(rows.contiguous()).tobytes())
            dtype, width = to_block(rows[:0]).dtype, rows.shape[1]
        file.flush()
        return torch.from_numpy(np.memmap(file, dtype=dtype, mode="c").reshape(-1, width))


def pass_over(member: Member, name: str, rows: int | None = None) -> Pass:
    """Return a function that starts a pass over a tensor by rows, at most `rows` at once where it is uncompressed."""
    source = member.source(name)
    if rows is not None and (raw := source.raw) is not None:
        return lambda: (to_tensor(block, source.dtype) for block in blocks_of_rows(raw, rows))
    return lambda: (to_tensor(block, source.dtype) for block in source.blocks())


def write_dense(members: Sequence[Member], out: Path, progress: Progress) -> None:
    """Write the average of versions of one architecture to `out`, with the files of the first; a single one as it is.

    Tensor by tensor they are summed in the order of `members`. The folder `out` is absent or empty.

    Raises:
        OutputError: `out` exists and is not empty.
        StorageError: the disk is full or refuses.
        DamagedError: a stored array is damaged.
    """
    first = members[0]
    streams = [
        stored_stream(link.name, link.dtype, link.shape, partial(first.open, link.role, link.name))
        if len(members) == 1
        else Stream(link.name, link.dtype, link.shape, partial(_average, members, link))
        for link in first.arrays
        if link.role in ("trunk", "mlp")
    ]
    own = {
        training.arrays: [
            Stream(link.name, link.dtype, link.shape, first.open(link.role, link.name).blocks)
            for link in first.arrays
            if link.role == training.key
        ]
        for training in joint_trainings()
        if len(members) == 1 and training.arrays and training.key in first.content
    }
    nbytes = sum(stream.nbytes for stream in chain(streams, *own.values()))
    with fresh_folder(out, replace=None, nbytes=nbytes) as folder:
        with progress("writing", nbytes, "B") as advance:
            write_weights(folder, streams, advance)
            for name, arrays in own.items():
                write_shard(folder / name, arrays, advance)
        copied = [name for name in first.names("file") if len(members) == 1 or name not in own_files()]
        write_files(folder, {name: first.file(name) for name in copied})


def write_adapter(member: Member, out: Path, progress: Progress) -> None:
    """Write the folder of an adapter as PEFT's `save_pretrained` does, its own files byte for byte as they came.

    The folder `out` is absent or empty (OutputError, StorageError, DamagedError: as `write_dense`).
    """
    nbytes = sum(link.nbytes for link in member.arrays if link.role == ADAPTER)
    with fresh_folder(out, replace=None, nbytes=nbytes) as folder, progress("writing", nbytes, "B") as advance:
        for name, parts in member.adapter_files():
            with (folder / name).open("wb") as file:
                for part in parts:
                    file.write(part)
                    advance(len(part))


def _average(members: Sequence[Member], link: ArrayLink) -> Iterator[Block]:
    sources = [member.open(link.role, link.name) for member in members]
    for parts in zip(*(source.blocks() for source in sources), strict=True):
        tensors = [to_tensor(part, source.dtype) for part, source in zip(parts, sources, strict=True)]
        combined = average(RowBlock(0, tuple(tensors), None), [1.0] * len(tensors))
        yield to_block(combined.to(torch_dtype(link.dtype)))


def known_members(workspace: Workspace, composed: ComposedFolder, without: str) -> list[Member]:
    """Return the members of a folder in their order, of which one at least has statistics; else none.

    A remark then says why, after the words `without` for what follows: one is not registered here; they have counts
    alone; or they are copies of a base model (ConflictError: one was opted out).
    """
    found, refs = registered_versions(workspace.catalog, composed), composed.manifest.members
    if composed.manifest.from_base is not None:
        why = "copies of a base model have no text of their own"
    elif not {*refs} <= found.keys():
        why = "not all of its members are registered here"
    else:
        members = [load_member(workspace, found[ref]) for ref in refs]
        if any(member.has_statistics(MLP_INPUT) for member in members):
            return members
        why = "no member has statistics, but counts alone"
    remark(workspace.progress, f"{without}: {why}")
    return []
