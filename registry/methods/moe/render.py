"""Rendering of a plan's tensors, block by block.

Shapes: R and C the rows and columns of an output tensor; a block holds some rows of it, (r, C), and the blocks of a
tensor add up to (R, C). Expert tensors that are stacked have the experts E first, (E, R, C). A gate is (E, H).
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float

from registry.composition.plan import OutputTensor
from registry.composition.stored import copied, held, selected, span
from registry.hosts import Constant, Experts, Trunk
from registry.hosts.tensors import (
    Entries,
    Evidence,
    EvidenceEmbedding,
    HeadMap,
    OwnHeadMap,
    Router,
    RouterBias,
    Widened,
)
from registry.io.safetensors_file import Span
from registry.io.torch_blocks import to_block, torch_dtype
from registry.methods.moe.tensor_source import TensorSource
from store.arrays import CARRIERS, Block, rows_per_block


def render(source: TensorSource, tensor: OutputTensor) -> Iterator[Block]:
    """Yield the rows of one output tensor, in its dtype's carrier (errors as `TensorSource.combined` and `held`)."""
    yield from held(_rendered(source, tensor), tensor.dtype, tensor.name)


def _rendered(source: TensorSource, tensor: OutputTensor) -> Iterator[Block]:
    dtype = torch_dtype(tensor.dtype)
    match tensor.made:
        case Experts(parts=parts):
            for member, rows in parts:  # the experts one after the other, which stacks them along the first axis
                yield from copied(source.mlp(member, rows.name), rows, tensor.dtype)
        case Trunk() as trunk:
            for combined in _combine(source, trunk):
                yield to_block(combined.to(dtype))
        case Constant(shape, value):
            rows_at_once = _few_rows(shape)
            for start in range(0, shape[0], rows_at_once):
                count = min(rows_at_once, shape[0] - start)
                yield to_block(torch.full((count, *shape[1:]), value, dtype=dtype))
        case Entries() as sparse:
            yield from _entries(source, sparse, dtype)
        case Widened() as widened:
            yield from _widened(source, widened, tensor)
        case EvidenceEmbedding() as embedding:
            yield from _evidence(source, embedding, dtype)
        case Evidence():
            yield to_block(source.context.evidence().to(dtype))
        case HeadMap() as maps:
            yield from _head_map(source, maps, dtype)
        case OwnHeadMap(shape, expert):
            matrix, shift = source.context.head_maps.affine(expert)
            own, rows_at_once = (matrix if len(shape) == 2 else shift).to(dtype), rows_per_block(shape)
            yield from (to_block(own[start : start + rows_at_once]) for start in range(0, shape[0], rows_at_once))
        case Router(layer=layer):
            gate = source.routers.gate(layer) / source.plan.recipe.temperature  # (E, H), float64
            yield to_block(gate.to(dtype))
        case RouterBias(layer=layer):
            bias = source.routers.bias(layer) / source.plan.recipe.temperature  # (E,), float64
            yield to_block(bias.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype))


def _widened(source: TensorSource, widened: Widened, tensor: OutputTensor) -> Iterator[Block]:
    """Yield the rows of a widened tensor: those of the tensor within it, and zeros."""
    inner, dtype = widened.inner, torch_dtype(tensor.dtype)
    if isinstance(inner, Experts):
        for member, rows in inner.parts:
            array = source.mlp(member, rows.name)
            for block in copied(array, rows, tensor.dtype):
                yield block if widened.axis == 0 else padded(block, widened.shape[-1])
            if widened.axis == 0:
                more = widened.shape[-2] - inner.shape[-2]
                yield to_block(torch.zeros((more, widened.shape[-1]), dtype=dtype))
        return
    for combined in _combine(source, inner):
        scaled = (combined.double() * widened.scale if widened.scale != 1.0 else combined).to(dtype)
        yield to_block(
            torch.nn.functional.pad(scaled, (0, widened.shape[-1] - scaled.shape[-1] if widened.axis else 0))
        )
    if widened.axis == 0:
        tail = torch.zeros((widened.shape[0] - inner.shape[0], *widened.shape[1:]), dtype=torch.float64)
        for index, value in widened.tail:
            tail[index - inner.shape[0]] = value
        yield to_block(tail.to(dtype))


def _few_rows(shape: tuple[int, ...]) -> int:
    """Return the rows of a block that stays in the processor's cache until it is written."""
    return max(1, rows_per_block(shape) // 16)


def padded(block: Block, width: int) -> Block:
    """Return a block with columns of zeros after its own; its values keep their bits."""
    wide = np.zeros((*block.shape[:-1], width), dtype=block.dtype)
    wide[..., : block.shape[-1]] = block
    return wide


def _entries(source: TensorSource, sparse: Entries, dtype: torch.dtype) -> Iterator[Block]:
    """Yield a tensor of few entries by blocks of its rows; the axes before the last count as one, (R, C)."""
    unit = source.context.unit() ** sparse.unit_power if sparse.unit_power else 1.0
    *above, width = sparse.shape
    flat, largest = (math.prod(above), width) if above else (width,), torch.finfo(dtype).max
    values = [(index, value * unit) for index, value in sparse.entries]
    if sparse.thresholds:  # in proportion to what they are compared with
        limits = source.context.thresholds()
        values += [(index, float(limits[pair]) * factor * unit) for index, pair, factor in sparse.thresholds]
        shrink = largest / max(largest, *(abs(value) for _, value in values))
        values = [(index, value * shrink) for index, value in values]
    rows_at_once = _few_rows(flat)
    by_block: dict[int, list[tuple[int, tuple[int, ...], float]]] = {}
    for index, value in values:
        row = index[0]
        for size, place in zip(sparse.shape[1:-1], index[1:-1], strict=True):
            row = row * size + place
        by_block.setdefault(row // rows_at_once, []).append((row % rows_at_once, index[-1:] if above else (), value))
    for number, start in enumerate(range(0, flat[0], rows_at_once)):
        block = torch.zeros((min(rows_at_once, flat[0] - start), *flat[1:]), dtype=dtype)
        for row, column, value in by_block.get(number, []):
            block[(row, *column)] = min(value, largest)
        yield to_block(block)


def _evidence(source: TensorSource, embedding: EvidenceEmbedding, dtype: torch.dtype) -> Iterator[Block]:
    """Yield the rows of the embedding with each token's evidence beside them (`hosts/context.py`)."""
    evidence, start = source.context.evidence(), 0
    hidden, experts = embedding.inner.shape[-1], embedding.experts
    for combined in _combine(source, embedding.inner):
        rows = combined.double()  # (r, H)
        wide = torch.zeros((len(rows), embedding.shape[-1]), dtype=torch.float64)
        wide[:, :hidden] = rows
        unit = torch.ones((len(rows), 1), dtype=torch.float64)  # ρ
        if embedding.epsilon is not None:
            unit = (rows.square().sum(dim=1, keepdim=True) / hidden + embedding.epsilon).sqrt()
        wide[:, hidden : hidden + experts] = evidence[start : start + len(rows)] * (unit * embedding.size)
        wide[:, hidden + experts] = unit[:, 0] * embedding.constant
        start += len(rows)
        yield to_block(wide.to(dtype))


def _head_map(source: TensorSource, maps: HeadMap, dtype: torch.dtype) -> Iterator[Block]:
    """Yield a projection of experts that add their head maps, expert by expert in blocks of rows."""
    height, width = maps.shape[-2:]
    rank, levels, hidden = maps.rank, maps.levels, maps.hidden_size
    inner = height // 2 if maps.projection == "gate_up" else width if maps.projection == "down" else height  # I
    used = rank * len(levels)
    unit = source.context.unit() ** maps.unit_power if maps.projection == "down" and maps.unit_power else 1.0
    gates = torch.tensor([gate for gate, _ in levels], dtype=torch.float64).repeat_interleave(rank)
    factors = torch.tensor([factor for _, factor in levels], dtype=torch.float64).repeat_interleave(rank) * unit
    rows_at_once = _few_rows((height, width))
    for expert in maps.experts:
        left, right = source.context.head_maps.factors(expert, rank, keep=len(maps.experts) > 1)  # (H, k), (k, H)
        for start in range(0, height, rows_at_once):
            rows = torch.arange(start, min(start + rows_at_once, height))
            block = torch.zeros((len(rows), width), dtype=torch.float64)
            if maps.projection == "down":
                here = rows < hidden
                block[here, :used] = left[rows[here]].repeat(1, len(levels)) * factors
            else:
                is_gate = rows < inner if maps.projection != "up" else torch.zeros_like(rows, dtype=torch.bool)
                places = torch.where(is_gate, rows, rows - (inner if maps.projection == "gate_up" else 0))
                gate, up = is_gate & (places < used), ~is_gate & (places < used)
                block[gate, maps.channel] = gates[places[gate]]
                block[up, :hidden] = right[places[up] % rank]
            yield to_block(block.to(dtype))


def spans(source: TensorSource, tensor: OutputTensor) -> list[Span] | None:
    """Return the stored bytes and the zeros that an expert tensor consists of; None for a tensor that is computed."""
    made = tensor.made
    experts = made.inner if isinstance(made, Widened) else made
    if not isinstance(experts, Experts):
        return None
    parts = [span(source.mlp(member, rows.name), rows, tensor.dtype) for member, rows in experts.parts]
    stored = [part for part in parts if part is not None]
    if len(stored) < len(parts):
        return None
    if not isinstance(made, Widened):
        return stored
    if any(len(part.raw.layout.shape) != 2 for part in stored):
        return None
    size = CARRIERS[tensor.dtype][1]
    if made.axis == 0:
        after = (made.shape[-2] - experts.shape[-2]) * made.shape[-1] * size
        return [replace(part, after=after) for part in stored]
    return [replace(part, padding=made.shape[-1] * size - part.raw.layout.row_bytes) for part in stored]


def _combine(source: TensorSource, trunk: Trunk) -> Iterator[Float[torch.Tensor, "r ..."]]:
    """Yield rows of a trunk tensor in the host's layout: selected, shifted and scaled."""
    for combined in selected(source.combined(trunk.rows.name), trunk.rows):
        if trunk.offset:
            combined = combined.double() + trunk.offset
        if trunk.scales is not None:  # (R,) → (R, 1); one block: reordered rows come all at once
            combined = combined.double() * torch.tensor(trunk.scales, dtype=torch.float64)[:, None]
        yield combined
