"""Making each tensor of a plan, block by block, from the members' arrays."""

from collections.abc import Iterator, Sequence

import torch

from registry.composing.member import Member
from registry.composing.plan import OutputTensor, Plan, Router
from registry.errors import InvalidInputError
from registry.hosts import Constant, Experts, Rows, Trunk
from registry.maths.router import ROUTERS
from registry.maths.trunk import TRUNKS, mean
from registry.sites import MLP_INPUT
from registry.tensors import DTYPES, to_block, to_tensor
from store.arrays import ArraySource, Block, rows_per_block


def produce(plan: Plan, tensor: OutputTensor) -> Iterator[Block]:
    """Yield the rows of one output tensor, in its dtype's carrier.

    Raises:
        DamagedError: an array it is made from is not what was stored.
        InvalidInputError: the router's linear system cannot be solved.
    """
    dtype = DTYPES[tensor.dtype]
    match tensor.made:
        case Experts(parts=parts):
            for member, rows in parts:
                yield from _copy(plan.members[member], rows, tensor.dtype)
        case Trunk() as trunk:
            for combined in _combine(plan, trunk):
                yield to_block(combined.to(dtype))
        case Constant(shape, value):
            rows_at_once = rows_per_block(shape)
            for start in range(0, shape[0], rows_at_once):
                count = min(rows_at_once, shape[0] - start)
                yield to_block(torch.full((count, *shape[1:]), value, dtype=dtype))
        case Router(layer=layer):
            yield to_block(_route(plan, layer).to(dtype))


def _copy(member: Member, rows: Rows, dtype: str) -> Iterator[Block]:
    """Yield rows of an expert's MLP: the bytes of its array, cast only where another dtype is wanted."""
    source = member.open("mlp", rows.name)
    if rows.rows is None and source.dtype == dtype:
        yield from source.blocks()
    else:
        yield from (to_block(tensor.to(DTYPES[dtype])) for tensor in _rows(source, rows))


def _rows(source: ArraySource, rows: Rows) -> Iterator[torch.Tensor]:
    """Yield rows of an array in the order wanted; all of it is read, so that its digest is checked."""
    blocks = (to_tensor(block, source.dtype) for block in source.blocks())
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


def _combine(plan: Plan, trunk: Trunk) -> Iterator[torch.Tensor]:
    method, name = TRUNKS[plan.recipe.trunk], trunk.rows.name
    base = None if plan.base is None else plan.base.open("trunk", name)
    missing = base is not None and base.shape[0] < plan.lead.link("trunk", name).shape[0]
    used = plan.members if method.needs_members or missing else ()
    sources = [member.open("trunk", name) for member in used]
    streams = [_rows(source, trunk.rows) for source in (*sources, *([base] if base else []))]
    for parts in _aligned(streams):
        own = parts[-1] if base else None
        members = [part for part in parts[: len(sources)] if part is not None]
        if own is None and base is not None:
            combined = mean(members)  # rows of tokens that the base model does not know
        else:
            combined = method.combine(members if method.needs_members else [], own)
        if trunk.offset:
            combined = combined.double() + trunk.offset
        if trunk.scales is not None:  # one block: reordered rows come all at once
            combined = combined.double() * torch.tensor(trunk.scales, dtype=torch.float64)[:, None]
        yield combined


def _aligned(streams: Sequence[Iterator[torch.Tensor]]) -> Iterator[list[torch.Tensor | None]]:
    """Yield the same rows of all streams at a time; None for a stream that has ended: it has no such token."""
    held: list[torch.Tensor | None] = [next(stream, None) for stream in streams]
    while lengths := [len(part) for part in held if part is not None]:
        shortest = min(lengths)
        yield [None if part is None else part[:shortest] for part in held]
        for number, part in enumerate(held):
            if part is not None:
                held[number] = part[shortest:] if len(part) > shortest else next(streams[number], None)


def _route(plan: Plan, layer: int) -> torch.Tensor:
    recipe = plan.recipe
    weights = [recipe.weights.get(name, 1.0) for name in plan.names]
    statistics = (member.statistics(MLP_INPUT, layer) for member in plan.members)
    try:
        gate = ROUTERS[recipe.router](statistics, weights, recipe.lam)
    except ValueError as error:
        raise InvalidInputError(
            f"the router of layer {layer} cannot be solved: {error}", "raise lam, for example --lam 0.1"
        ) from error
    return gate / recipe.temperature
