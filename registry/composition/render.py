"""Rendering of a plan's tensors, block by block.

Shapes: R and C the rows and columns of an output tensor; a block holds some rows of it, (r, C), and the blocks of a
tensor add up to (R, C). Expert tensors that are stacked have the experts E first, (E, R, C). A gate is (E, H).
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float

from registry.composition.plan import OutputTensor, Router
from registry.composition.tensor_source import TensorSource
from registry.hosts import Constant, Experts, RowSelection, Trunk
from registry.io.safetensors_writer import Span
from registry.io.torch_blocks import to_block, to_tensor, torch_dtype
from store.arrays import ArraySource, Block, rows_per_block


def render(source: TensorSource, tensor: OutputTensor) -> Iterator[Block]:
    """Yield the rows of one output tensor, in its dtype's carrier.

    Raises:
        DamagedError: a stored array is damaged.
        InvalidInputError: a linear system cannot be solved.
    """
    dtype = torch_dtype(tensor.dtype)
    match tensor.made:
        case Experts(parts=parts):
            for member, rows in parts:  # the experts one after the other, which stacks them along the first axis
                yield from copied(source.mlp(member, rows.name), rows, tensor.dtype)
        case Trunk() as trunk:
            for combined in _combine(source, trunk):
                yield to_block(combined.to(dtype))
        case Constant(shape, value):
            rows_at_once = rows_per_block(shape)
            for start in range(0, shape[0], rows_at_once):
                count = min(rows_at_once, shape[0] - start)
                yield to_block(torch.full((count, *shape[1:]), value, dtype=dtype))
        case Router(layer=layer):
            gate = source.routers.gate(layer) / source.plan.recipe.temperature  # (E, H), float64
            yield to_block(gate.to(dtype))


def spans(source: TensorSource, tensor: OutputTensor) -> list[Span] | None:
    """Return the stored bytes that an expert tensor consists of; None for a tensor that is computed."""
    if not isinstance(tensor.made, Experts):
        return None
    parts = [span(source.mlp(member, rows.name), rows, tensor.dtype) for member, rows in tensor.made.parts]
    return [part for part in parts if part is not None] if None not in parts else None


def span(source: ArraySource, rows: RowSelection, dtype: str) -> Span | None:
    """Return the bytes of some rows in their array's files; None if they are cast, reordered or not stored plainly."""
    raw = source.raw
    if raw is None or source.dtype != dtype:
        return None
    if rows.rows is None:
        return Span(raw, 0, raw.nbytes)
    if isinstance(rows.rows, range) and rows.rows.step == 1:  # rows that follow one another in the file
        return Span(raw, rows.rows.start * raw.row_bytes, rows.rows.stop * raw.row_bytes)
    return None


def copied(source: ArraySource, rows: RowSelection, dtype: str) -> Iterator[Block]:
    """Yield rows of a tensor: the bytes of its array, cast only if its dtype differs."""
    if rows.rows is None and source.dtype == dtype:
        yield from source.blocks()
    else:
        blocks = (to_tensor(block, source.dtype) for block in source.blocks())
        yield from (to_block(tensor.to(torch_dtype(dtype))) for tensor in _rows(blocks, rows))


def _rows(blocks: Iterator[Float[torch.Tensor, "r ..."]], rows: RowSelection) -> Iterator[Float[torch.Tensor, "r ..."]]:
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


def _combine(source: TensorSource, trunk: Trunk) -> Iterator[Float[torch.Tensor, "r ..."]]:
    """Yield rows of a trunk tensor in the host's layout: selected, shifted and scaled."""
    for combined in _rows(source.combined(trunk.rows.name), trunk.rows):
        if trunk.offset:
            combined = combined.double() + trunk.offset
        if trunk.scales is not None:  # (R,) → (R, 1); one block: reordered rows come all at once
            combined = combined.double() * torch.tensor(trunk.scales, dtype=torch.float64)[:, None]
        yield combined
