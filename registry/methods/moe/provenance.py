"""Provenance of a composition's tensors: the inputs that their bytes are a function of."""

from dataclasses import replace
from typing import Any

from registry.composition.plan import OutputTensor, Plan
from registry.hosts import Constant, Experts, RowSelection, Trunk
from registry.hosts.tensors import Entries, EvidenceEmbedding, HeadMap, Widened
from registry.methods.moe.recipe import trunk_of
from store.digest import json_digest


def origin(plan: Plan, tensor: OutputTensor) -> Any:
    """Return, as JSON, the inputs of a tensor's bytes, apart from its shape, its dtype and this program.

    The bytes of an expert tensor are a function of arrays and their rows. Those of a trunk tensor, of a head map and of
    evidence are a function of the trunk's recipe and the members, or of one array if it is the base model's own. Those
    of a router, and of whatever is refitted, are a function of the whole composition.
    """
    match tensor.made:
        case Experts(parts=parts) if not plan.recipe.refine_mlp:
            return [[plan.members[member].link("mlp", rows.name).digest, _numbers(rows)] for member, rows in parts]
        case Trunk(rows=rows) as trunk if not plan.recipe.refine_mlp:
            return [_combined(plan, rows.name), rows.name, _numbers(rows), trunk.offset, trunk.scales]
        case Constant(value=value):
            return value
        case Entries(entries=entries, unit_power=0, thresholds=()):
            return [[list(index), value] for index, value in entries]
        case Widened(inner=inner) as widened:
            return [origin(plan, replace(tensor, made=inner)), widened.axis, widened.scale, widened.tail]
        case EvidenceEmbedding(inner=inner) as embedding if not plan.recipe.refine_mlp:
            own = origin(plan, replace(tensor, made=inner))  # of the base model alone, perhaps; evidence is of members
            return [trunk_digest(plan), own, embedding.experts, embedding.size, embedding.constant, embedding.epsilon]
        case HeadMap() as maps if not plan.recipe.refine_mlp:
            # The shared head, its norm and the embedding are of the trunk; the experts' own are those of its members.
            of_maps = maps.experts, maps.projection, maps.rank, maps.levels, maps.channel, maps.unit_power
            return [trunk_digest(plan), *of_maps]
    return plan.digest


def trunk_digest(plan: Plan) -> str:
    """Return the digest of the inputs of the composed trunk, and of the MLPs if they are refitted."""
    document = plan.document
    recipe = document["recipe"]
    if plan.recipe.refine_mlp:  # routers take part in the refit; the passes after it do not
        recipe = {key: value for key, value in recipe.items() if key not in ("refine", "token_weight", "top_k")}
    else:
        keys = ("trunk", "trunk_options", "combine", "coefficients", "weights", "balance", "dtype")
        recipe = {key: recipe[key] for key in keys if key in recipe}
    return json_digest([recipe, document["members"], document["base"], plan.dtype])


def _combined(plan: Plan, name: str) -> str:
    base = plan.base
    if base is None or trunk_of(plan.recipe).needs_members:
        return trunk_digest(plan)
    array = base.weight(name)
    return array.digest if array.shape[0] >= plan.lead.weight(name).shape[0] else trunk_digest(plan)


def _numbers(rows: RowSelection) -> list[int] | None:
    if rows.rows is None:
        return None
    if isinstance(rows.rows, range):
        return [-1, rows.rows.start, rows.rows.stop, rows.rows.step]  # no row has the number -1
    return list(rows.rows)
