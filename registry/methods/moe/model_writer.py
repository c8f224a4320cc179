"""Writer of a plan's model: weights, config.json, tokenizer and code."""

import json
from functools import partial
from typing import Any

import torch

from registry.composition.plan import ROUTER, OutputTensor, Plan
from registry.composition.taken_files import special_tokens, taken_files
from registry.destination.destination import OpenDestination
from registry.hosts import Constant
from registry.hosts.tensors import Entries, HeadMap, Made, OwnHeadMap, Trunk, Widened
from registry.io.model_folder import json_file
from registry.io.process import available_memory
from registry.io.safetensors_file import Stream
from registry.maths.threads import one_thread
from registry.methods.moe.pass_memory import rendering_bytes
from registry.methods.moe.provenance import origin
from registry.methods.moe.recipe import top_k, trunk_of
from registry.methods.moe.render import render, spans
from registry.methods.moe.tensor_source import TensorSource
from registry.progress import Progress


def write_model(source: TensorSource, folder: OpenDestination, progress: Progress) -> None:
    """Write weights, config.json, tokenizer and code of a plan.

    Args:
        source: the tensors of the plan.
        folder: what they are written into.
        progress: reports the bytes written.
    """
    plan = source.plan
    # Each tensor is computed on one thread, so that its bits do not depend on their number.
    with one_thread(), progress("composing", plan.nbytes, "B") as advance:
        folder.write_weights(streams_of(source), advance, workers=rendering_threads(plan))
    config = {"config.json": json_file(host_config(plan))}
    folder.write_files(taken_files(plan.members, plan.lead) | dict(plan.parts.host.files) | config)


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
