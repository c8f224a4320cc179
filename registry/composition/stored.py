"""Stored arrays as the tensors of a folder: their own bytes wherever these can be copied."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from jaxtyping import Float

from registry.errors import InvalidInputError
from registry.hosts import RowSelection
from registry.io.safetensors_file import Span
from registry.io.torch_blocks import to_block, to_tensor, torch_dtype
from registry.maths.trunk.combination import Pass
from registry.member import Member
from store.arrays import ArraySource, Block, blocks_of_rows


def held(blocks: Iterable[Block], dtype: str, name: str) -> Iterator[Block]:
    """Yield the blocks of a tensor that was cast, checked: float16 makes infinity of a weight beyond 65,504.

    Args:
        blocks: the tensor, in its dtype's carrier.
        dtype: the dtype.
        name: the tensor, for the message.

    Raises:
        InvalidInputError: a weight is infinite.
    """
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


def pass_over(member: Member, name: str, rows: int | None = None) -> Pass:
    """Return a function that starts a pass over a member's tensor, in blocks of its rows.

    Args:
        member: the member.
        name: the tensor.
        rows: rows of a block, at most, if the tensor is stored uncompressed; each of its files begins a new block.
    """
    source = member.open_weight(name)
    if rows is not None and (raw := source.raw) is not None:
        return lambda: (to_tensor(block, source.dtype) for block in blocks_of_rows(raw, rows))
    return lambda: (to_tensor(block, source.dtype) for block in source.blocks())
