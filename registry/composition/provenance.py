"""What the bytes of a composition's tensors are a function of."""

from typing import Any

from registry.composition.plan import OutputTensor, Plan
from registry.hosts import Constant, Experts, RowSelection, Trunk
from registry.maths.trunk import TRUNKS
from store.digest import json_digest


def origin(plan: Plan, tensor: OutputTensor) -> Any:
    """Return, as JSON has it, what a tensor's bytes are a function of, beside its shape, its dtype and this program.

    An expert tensor is one of arrays and their rows; a trunk tensor one of the trunk's recipe and the members, where it
    is the base model's own of that array alone; a router, and all that is refitted, one of the whole composition.
    """
    match tensor.made:
        case Experts(parts=parts) if not plan.recipe.refine_mlp:
            return [[plan.members[member].link("mlp", rows.name).digest, _numbers(rows)] for member, rows in parts]
        case Trunk(rows=rows) as trunk if not plan.recipe.refine_mlp:
            return [_combined(plan, rows.name), rows.name, _numbers(rows), trunk.offset, trunk.scales]
        case Constant(value=value):
            return value
    return plan.digest


def trunk_digest(plan: Plan) -> str:
    """Return the digest of what the composed trunk, and the MLPs where they are refitted, are a function of."""
    document = plan.document
    recipe = document["recipe"]
    if recipe.get("refine_mlp"):  # the routers have a part in the refit, the passes after it have none
        recipe = {key: value for key, value in recipe.items() if key not in ("refine", "token_weight", "top_k")}
    else:
        keys = ("trunk", "trunk_options", "weights", "balance", "dtype")
        recipe = {key: recipe[key] for key in keys}
    return json_digest([recipe, document["members"], document["base"], plan.dtype])


def _combined(plan: Plan, name: str) -> str:
    base = plan.base
    if base is None or TRUNKS[plan.recipe.trunk].needs_members:
        return trunk_digest(plan)
    own = base.weight(name)
    return own.digest if own.shape[0] >= plan.lead.weight(name).shape[0] else trunk_digest(plan)


def _numbers(rows: RowSelection) -> list[int] | None:
    if rows.rows is None:
        return None
    if isinstance(rows.rows, range):
        return [-1, rows.rows.start, rows.rows.stop, rows.rows.step]  # no row has the number -1
    return list(rows.rows)
