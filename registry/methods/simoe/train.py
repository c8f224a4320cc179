"""Training of a SIMoE from a base model, and the registration of its experts."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from registry.calibration import Corpus
from registry.checkpoint import Checkpoint, hash_checkpoint
from registry.checkpoint.annotations import Annotations
from registry.checkpoint.model_files import EXPERT_TRAINING
from registry.checkpoint.trained_files import pack_document
from registry.errors import CheckpointError, InvalidInputError
from registry.io.torch_blocks import to_block, to_tensor, torch_dtype
from registry.maths.interpolation import expert_weight, overlap_matrix, pack_bits
from registry.methods.simoe.host import interpolated_layers
from registry.methods.simoe.model import CURVES, Simoe
from registry.methods.simoe.settings import SimoeTraining
from registry.methods.simoe.text import SimoeWindows, read_simoe_windows
from registry.methods.simoe.versions import DELTA, KEY, MASK, ROW, SIMOE_ARRAYS, SIMOE_FILE, delta_digest
from registry.names.reference import copy_name, require_list
from registry.progress import remark
from registry.registration import Registration
from registry.runtime.loading import load_model, load_tokenizer
from registry.training.from_base import (
    TrainedFromBase,
    check_joint,
    joint_training,
    opened_base,
    register_trained,
    streams_like,
)
from registry.training.loop import training_document
from registry.training.sharded import array_of, stream_of
from registry.training.training_windows import shortened
from registry.training.weight_trainer import WeightTrainer, device_and_dtype
from registry.workspace import PathLike, Workspace
from store.arrays import Block, digest_of


@dataclass(frozen=True)
class TrainedSimoe(TrainedFromBase):
    """The result of a training: its experts by number; held-out losses are of the final masks."""

    experts: tuple[Registration, ...]


def train_simoe(
    workspace: Workspace,
    name: str,
    base: str,
    data: Sequence[PathLike],
    settings: SimoeTraining,
    *,
    annotations: Annotations | None = None,
) -> TrainedSimoe:
    """Train a SIMoE from a base model, and register its experts (arguments and errors as `Registry.train_simoe`).

    An interrupted training continues when it is started again, and gives the same bytes. On one machine with one number
    of threads, equal inputs give equal bytes.
    """
    files = [Path(file) for file in require_list(data, "data")]
    check_joint(workspace, name, settings.experts, KEY, "a SIMoE", annotations)
    if not files:
        raise InvalidInputError("there is nothing to train on", "give --data FILE, or several")
    Corpus(files, None)  # refuses what is no file before a weight is read
    version = workspace.resolve(base, kind="base")
    progress = workspace.progress
    with ExitStack() as stack:
        checkpoint, holds = stack.enter_context(opened_base(workspace, version.ref))
        size = shortened(settings.seq_len, checkpoint.folder, progress)
        settings.check_window(size)
        settings = replace(settings, seq_len=size)
        windows = read_simoe_windows(files, checkpoint, load_tokenizer(checkpoint.folder), settings, progress)
        device, dtype = device_and_dtype(settings)
        hashed = hash_checkpoint(checkpoint, progress)
        inputs = settings.document(device, dtype) | {"data": windows.all.digest, "base": hashed.weights}
        simoe = _begin(checkpoint, device, settings)
        trainer = trainer_of(simoe, windows, bfloat16=dtype == "bfloat16")
        what = f"shared weights, {settings.experts} masks and a router"
        losses = stack.enter_context(joint_training(workspace, KEY, name, trainer, inputs, holds, what))
        masks, closed = simoe.final()
        document = training_document(inputs, losses)
        matrices = checkpoint.family.layer_matrices(checkpoint.architecture)
        document |= _curves(simoe, masks, closed, document["every"], matrices)
        record = json.dumps(document, indent=2).encode()
        if closed:
            remark(progress, f"{closed:,} open gates were closed at the end: the masks had fewer zeros than asked for")
        deltas = {
            f"{DELTA}{matrix}": array_of(delta, checkpoint.dtype_of(matrix))
            for matrix, delta in zip(matrices, simoe.deltas, strict=True)
        }
        own = {"base": hashed.weights, "experts": settings.experts, "prompt_tokens": settings.prompt_tokens}
        own["delta"] = delta_digest({array: digest_of(source) for array, source in deltas.items()})
        experts = []
        for number, mask in enumerate(masks):
            parts = {SIMOE_FILE: pack_document(own | {"number": number + 1}), EXPERT_TRAINING: record}
            arrays = deltas | {MASK: array_of(pack_bits(mask)), ROW: array_of(simoe.router[number])}
            more = {SIMOE_ARRAYS: [stream_of(array, source) for array, source in arrays.items()]}
            names = (*checkpoint.trunk, *checkpoint.mlp)
            streams = streams_like(checkpoint, names, partial(_blocks, simoe, checkpoint, mask))
            expert = copy_name(name, number + 1, settings.experts)
            experts.append(register_trained(workspace, expert, annotations, hashed, streams, parts, windows.all, more))
    return TrainedSimoe(document, losses, windows.predicted, tuple(experts))


def trainer_of(simoe: Simoe, windows: SimoeWindows, *, bfloat16: bool) -> WeightTrainer:
    """Return the training of a SIMoE: one step changes D, gates and router by the gradient, then λ by dual ascent."""
    return WeightTrainer(
        simoe,
        simoe.trained,
        windows,
        simoe.settings,
        bfloat16,
        simoe.penalty,
        decays=simoe.decays,
        rate_of=simoe.rate_of,
        ascend=simoe.ascend,
    )


def _begin(checkpoint: Checkpoint, device: str, settings: SimoeTraining) -> Simoe:
    model = load_model(checkpoint.folder, "float32", device)
    modules = interpolated_layers(checkpoint.family, checkpoint.architecture)
    known = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    if missing := sorted(set(modules) - known):
        raise CheckpointError(
            f"{checkpoint.label}: transformers has no linear module {missing[0]}, so it cannot be trained here",
            "choose another base model",
        )
    return Simoe(model, modules, settings)


def _curves(simoe: Simoe, masks: Tensor, closed: int, every: int, matrices: Sequence[str]) -> dict[str, Any]:
    """Return sparsity, overlap and λ of the steps as `curve` returns losses, and the final masks' in full.

    `matrices` names the weights of the layers, in the order of the masks' entries.
    """
    record = simoe.record.detach().double().cpu()
    means = [part.mean(dim=0).tolist() for part in record.split(every)]
    curves = {name: [float(point[column]) for point in means] for column, name in enumerate(CURVES)}
    final = {
        "sparsity": float(1 - masks.double().mean()),
        "of_experts": [float(1 - mask.double().mean()) for mask in masks],
        "of_layers": {
            matrix: (1 - part.double().mean(dim=1)).tolist()  # of each expert
            for matrix, part in zip(matrices, masks.split(simoe.outputs, dim=1), strict=True)
        },
        "overlap": overlap_matrix(masks.float()).double().tolist(),
        "closed": closed,
    }
    return {"curves": curves, "masks": final}


def _blocks(simoe: Simoe, checkpoint: Checkpoint, mask: Tensor, name: str) -> Iterator[Block]:
    """Yield a tensor of one expert's checkpoint: the base model's, with the rows of D added that the mask opens."""
    matrices, source = checkpoint.family.layer_matrices(checkpoint.architecture), checkpoint.source(name)
    if name not in matrices:
        yield from source.blocks()
        return
    layer, start, dtype = matrices.index(name), 0, torch_dtype(source.dtype)
    delta, own = simoe.deltas[layer].detach().to("cpu", dtype), mask.cpu().split(simoe.outputs)[layer]
    for block in source.blocks():
        weight = to_tensor(block, source.dtype).float()
        rows = slice(start, start + len(weight))
        yield to_block(expert_weight(weight, delta[rows].float(), own[rows].float()).to(dtype))
        start = rows.stop
