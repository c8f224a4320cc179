"""Making each tensor of a plan, block by block."""

from collections.abc import Iterator

import torch

from registry.composition.plan import OutputTensor, Router
from registry.composition.tensor_source import TensorSource
from registry.hosts import Constant, Experts, RowSelection, Trunk
from registry.io.safetensors_writer import Span
from registry.io.torch_blocks import to_block, to_tensor, torch_dtype
from store.arrays import ArraySource, Block, rows_per_block


def render(source: TensorSource, tensor: OutputTensor) -> Iterator[Block]:
    """Yield the rows of one output tensor, in its dtype's carrier.

    Raises:
        DamagedError: an array it is made from is not what was stored.
        InvalidInputError: a linear system cannot be solved.
    """
    dtype = torch_dtype(tensor.dtype)
    match tensor.made:
        case Experts(parts=parts):
            for member, rows in parts:
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
            gate = source.routers.gate(layer) / source.plan.recipe.temperature
            yield to_block(gate.to(dtype))


def spans(source: TensorSource, tensor: OutputTensor) -> list[Span] | None:
    """Return the stored bytes that an expert tensor is made of, or None where it is made otherwise."""
    if not isinstance(tensor.made, Experts):
        return None
    found = [span(source.mlp(member, rows.name), rows, tensor.dtype) for member, rows in tensor.made.parts]
    return [one for one in found if one is not None] if None not in found else None


def span(source: ArraySource, rows: RowSelection, dtype: str) -> Span | None:
    """Return the bytes of some rows in their array's files; None where they are cast, reordered or not stored so."""
    raw = source.raw
    if raw is None or source.dtype != dtype:
        return None
    if rows.rows is None:
        return Span(raw, 0, raw.nbytes)
    if isinstance(rows.rows, range) and rows.rows.step == 1:
        return Span(raw, rows.rows.start * raw.row_bytes, rows.rows.stop * raw.row_bytes)
    return None


def copied(source: ArraySource, rows: RowSelection, dtype: str) -> Iterator[Block]:
    """Yield rows of a tensor: the bytes of its array, cast only where another dtype is wanted."""
    if rows.rows is None and source.dtype == dtype:
        yield from source.blocks()
    else:
        blocks = (to_tensor(block, source.dtype) for block in source.blocks())
        yield from (to_block(tensor.to(torch_dtype(dtype))) for tensor in _rows(blocks, rows))


def _rows(blocks: Iterator[torch.Tensor], rows: RowSelection) -> Iterator[torch.Tensor]:
    """Yield rows of a tensor in the order wanted; all of it is read, so that its digest is checked."""
    if rows.rows is None:
        yield from blocks
    elif isinstance(rows.rows, range):
        start = 0
        for block in blocks:
            wanted = block[max(rows.rows.start - start, 0) : max(rows.rows.stop - start, 0)]
            start += len(block)
            if len(wanted):
                yield wanted
    else:
        yield torch.cat(list(blocks))[list(rows.rows)]


def _combine(source: TensorSource, trunk: Trunk) -> Iterator[torch.Tensor]:
    for combined in _rows(source.combined(trunk.rows.name), trunk.rows):
        if trunk.offset:
            combined = combined.double() + trunk.offset
        if trunk.scales is not None:  # one block: reordered rows come all at once
            combined = combined.double() * torch.tensor(trunk.scales, dtype=torch.float64)[:, None]
        yield combined
