"""Writer of a plan's model: weights, config.json, tokenizer and code."""

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from registry.checkpoint import COPIED_FILES
from registry.composition.plan import Plan
from registry.composition.provenance import origin
from registry.composition.render import render, spans
from registry.composition.tensor_source import TensorSource
from registry.io.model_folder import json_file, write_files, write_weights
from registry.io.safetensors_writer import Stream
from registry.io.shard_reuse import ShardReuse
from registry.maths.threads import one_thread
from registry.maths.trunk import TRUNKS
from registry.progress import Progress


def write_model(
    source: TensorSource, folder: Path, progress: Progress, reuse: ShardReuse | None = None
) -> dict[str, str]:
    """Write weights, config.json, tokenizer and code of a plan into a folder, and return file name → SHA-256.

    Args:
        source: the tensors of the plan.
        folder: an empty folder.
        progress: reports the bytes written.
        reuse: shards of the folder that this one replaces.
    """
    plan = source.plan
    # If little is computed, threads that wait for one another only slow down those that copy and hash.
    threads = nullcontext() if TRUNKS[plan.recipe.trunk].needs_inputs else one_thread()
    with threads, progress("composing", plan.nbytes, "B") as advance:
        digests = write_weights(folder, streams_of(source), advance, reuse)
    copied = {name: plan.lead.file(name) for name in plan.lead.names("file") if name in COPIED_FILES}
    return digests | write_files(folder, copied | dict(plan.host.files) | {"config.json": json_file(host_config(plan))})


def streams_of(source: TensorSource) -> list[Stream]:
    """Return every tensor of a plan as a stream."""
    return [
        Stream(
            tensor.name,
            tensor.dtype,
            tensor.shape,
            partial(render, source, tensor),
            partial(spans, source, tensor),
            tensor.part,
            origin(source.plan, tensor),
        )
        for tensor in source.plan.tensors
    ]


def host_config(plan: Plan) -> dict[str, Any]:
    """Return config.json: the host's own keys, the members' special tokens, the dtype in both spellings."""
    count = len(plan.members)
    return {
        **plan.host.dense_config(json.loads(plan.lead.file("config.json"))),
        "architectures": [plan.host.class_name],
        "model_type": plan.host.model_type,
        "dtype": plan.dtype,
        "torch_dtype": plan.dtype,
        **plan.lead.content["special_tokens"],
        **plan.host.config(plan.translation.architecture, count, plan.recipe.experts_per_token(count)),
    }
