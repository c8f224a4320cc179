"""The parts of a plan that are written: its tensors as streams, the inputs of their bytes, and config.json."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from registry.composition.plan import ROUTER, OutputTensor, Plan
from registry.composition.taken_files import special_tokens
from registry.hosts import Constant, Experts, RowSelection, Trunk
from registry.hosts.tensors import Entries, EvidenceEmbedding, HeadMap, Made, OwnHeadMap, Widened
from registry.io.process import available_memory
from registry.io.safetensors_file import Stream
from registry.methods.moe.output import top_k, trunk_of
from registry.methods.moe.pass_memory import rendering_bytes
from registry.methods.moe.render import render, spans
from registry.methods.moe.tensor_source import TensorSource
from store.digest import json_digest


def streams_of(source: TensorSource) -> list[Stream]:
    """Return every tensor of a plan as a stream."""
    return [
        Stream(
            tensor.name,
            tensor.dtype,
            tensor.shape,
            partial(render, source, tensor),
            partial(spans, source, tensor),
            _file_part(tensor),
            origin(source.plan, tensor),
            _job(source.plan, tensor.made),
        )
        for tensor in source.plan.tensors
    ]


def rendering_threads(plan: Plan) -> int:
    """Return how many threads compute tensors: torch's, as far as half of the free memory holds the work of each."""
    return max(1, min(torch.get_num_threads(), available_memory() // 2 // max(1, rendering_bytes(plan))))


def _file_part(tensor: OutputTensor) -> str:
    """Return the part whose files hold a tensor: tensors that change with the same options of a recipe.

    A context layer's own tensors change with what its routers read, the tensors that it widens and head maps do not.
    """
    if isinstance(tensor.made, HeadMap | OwnHeadMap):
        return "head maps"
    return ROUTER if isinstance(tensor.made, Entries | Constant) else tensor.part


def _job(plan: Plan, made: Made) -> str:
    """Return the name that tensors have in common of which one thread computes all: they share what takes long."""
    match made:
        case HeadMap(experts=experts):
            return f"head map {','.join(map(str, experts))}"
        case OwnHeadMap(expert=expert):
            return f"head map {expert}"
        case Widened(inner=inner):
            return _job(plan, inner)
        case Trunk(rows=rows) if trunk_of(plan.recipe).solves_together:
            inputs = plan.lead.family.linear_inputs(plan.lead.architecture)
            return "{} {}".format(*inputs[rows.name]) if rows.name in inputs else ""
    return ""


def host_config(plan: Plan) -> dict[str, Any]:
    """Return config.json: the host's own keys, the members' special tokens, the dtype in both spellings."""
    count = len(plan.members)
    return {
        **plan.parts.host.dense_config(json.loads(plan.lead.file("config.json"))),
        "architectures": [plan.parts.host.class_name],
        "model_type": plan.parts.host.model_type,
        "dtype": plan.dtype,
        "torch_dtype": plan.dtype,
        **special_tokens(plan.members, plan.lead),
        **plan.parts.host.config(plan.parts.architecture, count, top_k(plan.recipe, count)),
    }


def origin(plan: Plan, tensor: OutputTensor) -> Any:
    """Return, as JSON, the inputs of a tensor's bytes, apart from its shape, its dtype and this program.

    The bytes of an expert tensor are a function of arrays and their rows. Those of a trunk tensor, of a head map and of
    evidence are a function of the trunk's recipe and the members, or of one array if it is the base model's own. Those
    of a router are a function of the whole composition.
    """
    match tensor.made:
        case Experts(parts=parts):
            return [[plan.members[member].link("mlp", rows.name).digest, _numbers(rows)] for member, rows in parts]
        case Trunk(rows=rows) as trunk:
            return [_combined(plan, rows.name), rows.name, _numbers(rows), trunk.offset, trunk.scales]
        case Constant(value=value):
            return value
        case Entries(entries=entries, unit_power=0, thresholds=()):
            return [[list(index), value] for index, value in entries]
        case Widened(inner=inner) as widened:
            return [origin(plan, replace(tensor, made=inner)), widened.axis, widened.scale, widened.tail]
        case EvidenceEmbedding(inner=inner) as embedding:
            own = origin(plan, replace(tensor, made=inner))  # of the base model alone, perhaps; evidence is of members
            return [trunk_digest(plan), own, embedding.experts, embedding.size, embedding.constant, embedding.epsilon]
        case HeadMap() as maps:
            # The shared head, its norm and the embedding are of the trunk; the experts' own are those of its members.
            of_maps = maps.experts, maps.projection, maps.rank, maps.levels, maps.channel, maps.unit_power
            return [trunk_digest(plan), *of_maps]
    return plan.digest


def trunk_digest(plan: Plan) -> str:
    """Return the digest of the inputs of the composed trunk."""
    document = plan.document
    keys = ("trunk", "trunk_options", "combine", "coefficients", "weights", "balance", "dtype")
    recipe = {key: document["recipe"][key] for key in keys if key in document["recipe"]}
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
