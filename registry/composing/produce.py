"""Making each tensor of a plan, block by block, from the members' arrays."""

from collections.abc import Iterator

import torch

from registry.composing.plan import Combined, Copied, OutputTensor, Plan, Routed
from registry.errors import InvalidInputError
from registry.maths.router import ROUTERS
from registry.maths.trunk import TRUNKS
from registry.sites import MLP_INPUT
from registry.tensors import DTYPES, to_block, to_tensor
from store.arrays import ArraySource, Block


def produce(plan: Plan, tensor: OutputTensor) -> Iterator[Block]:
    """Yield the rows of one output tensor, in its dtype's carrier.

    Raises:
        DamagedError: an array it is made from is not what was stored.
        InvalidInputError: the router's linear system cannot be solved.
    """
    match tensor.made:
        case Copied(member, name):
            source = plan.members[member].open("mlp", name)
            yield from source.blocks() if source.dtype == tensor.dtype else _cast(source, tensor.dtype)
        case Combined(name):
            yield from _combine(plan, name, tensor.dtype)
        case Routed(layer):
            yield to_block(_route(plan, layer).to(DTYPES[tensor.dtype]))


def _tensors(source: ArraySource) -> Iterator[torch.Tensor]:
    return (to_tensor(block, source.dtype) for block in source.blocks())


def _cast(source: ArraySource, dtype: str) -> Iterator[Block]:
    return (to_block(tensor.to(DTYPES[dtype])) for tensor in _tensors(source))


def _combine(plan: Plan, name: str, dtype: str) -> Iterator[Block]:
    method = TRUNKS[plan.recipe.trunk]
    members = [_tensors(member.open("trunk", name)) for member in plan.members] if method.needs_members else []
    base = [] if plan.base is None else [_tensors(plan.base.open("trunk", name))]
    for blocks in zip(*members, *base, strict=True):
        combined = method.combine(blocks[: len(members)], blocks[-1] if base else None)
        yield to_block(combined.to(DTYPES[dtype]))


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
