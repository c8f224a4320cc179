"""Dense folders from the store: an expert bit for bit, or the averaged weights of several."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from registry.checkpoint.model_files import OWN_FILES, SIMOE_ARRAYS
from registry.composition.stored import span
from registry.hosts import RowSelection
from registry.io.model_folder import fresh_folder, write_files, write_weights
from registry.io.safetensors_file import Span, Stream, write_shard
from registry.io.torch_blocks import to_block, to_tensor, torch_dtype
from registry.maths.trunk.combination import RowBlock, average
from registry.member import Member
from registry.progress import Progress
from store.arrays import Block
from store.catalog.records import Role


def write_dense(members: Sequence[Member], out: Path, progress: Progress) -> None:
    """Write the average of `members` to `out`, tensor by tensor, with the files of the first; a single member as it is.

    Args:
        members: versions of one architecture, in the order in which they are summed.
        out: an absent or empty folder.
        progress: reports the bytes written.

    Raises:
        OutputError: `out` exists and is not empty.
        StorageError: the disk is full or refuses.
        DamagedError: a stored array is damaged.
    """
    first = members[0]
    links = [link for link in first.arrays if link.role in ("trunk", "mlp")]
    streams = [
        Stream(
            link.name,
            link.dtype,
            link.shape,
            partial(_average, members, link.role, link.name, link.dtype),
            partial(_spans, members, link.role, link.name, link.dtype),
        )
        for link in links
    ]
    own = _own_arrays(first) if len(members) == 1 else []
    nbytes = sum(stream.nbytes for stream in (*streams, *own))
    with fresh_folder(out, replace=None, nbytes=nbytes) as folder:
        with progress("writing", nbytes, "B") as advance:
            write_weights(folder, streams, advance)
            if own:
                write_shard(folder / SIMOE_ARRAYS, own, advance)
        copied = [name for name in first.names("file") if len(members) == 1 or name not in OWN_FILES]
        write_files(folder, {name: first.file(name) for name in copied})


def _own_arrays(member: Member) -> list[Stream]:
    links = [link for link in member.arrays if link.role == "simoe"]
    return [Stream(link.name, link.dtype, link.shape, member.open("simoe", link.name).blocks) for link in links]


def _spans(members: Sequence[Member], role: Role, name: str, dtype: str) -> list[Span] | None:
    stored = span(members[0].open(role, name), RowSelection(name), dtype) if len(members) == 1 else None
    return None if stored is None else [stored]


def _average(members: Sequence[Member], role: Role, name: str, dtype: str) -> Iterable[Block]:
    sources = [member.open(role, name) for member in members]
    if len(sources) == 1:
        return sources[0].blocks()

    def blocks() -> Iterator[Block]:
        for parts in zip(*(source.blocks() for source in sources), strict=True):
            tensors = [to_tensor(part, source.dtype) for part, source in zip(parts, sources, strict=True)]
            combined = average(RowBlock(0, tuple(tensors), None), [1.0] * len(tensors))
            yield to_block(combined.to(torch_dtype(dtype)))

    return blocks()
