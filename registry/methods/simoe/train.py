"""Training of a SIMoE from a base model, and the registration of its experts."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from registry.calibration import Calibration, Corpus
from registry.checkpoint import Checkpoint, HashedCheckpoint, hash_checkpoint
from registry.checkpoint.annotations import Annotations
from registry.checkpoint.model_files import EXPERT_TRAINING, OWN_FILES, SIMOE_ARRAYS, SIMOE_FILE
from registry.checkpoint.trained_files import DELTA, MASK, ROW, delta_digest, pack_simoe
from registry.errors import CheckpointError, InvalidInputError
from registry.io.dtypes import AUTO
from registry.io.model_folder import fresh_folder, write_files, write_weights
from registry.io.safetensors_file import Stream, write_shard
from registry.io.torch_blocks import to_block, to_tensor, torch_dtype
from registry.io.work_dirs import resumable, temporary
from registry.maths.interpolation import overlap_matrix, pack_bits
from registry.methods.simoe.model import CURVES, Simoe
from registry.methods.simoe.settings import SimoeTraining
from registry.methods.simoe.text import read_simoe_windows
from registry.methods.simoe.trainer import SimoeTrainer
from registry.names.reference import copy_name, require_list
from registry.progress import remark
from registry.registration import Registration
from registry.runtime.loading import device_name, load_model, load_tokenizer
from registry.runtime.upcast import is_fast
from registry.training.announcement import announce
from registry.training.expert.train_expert import opened_base
from registry.training.trained_together import (
    check_libraries,
    check_names,
    check_one_process,
    register_trained,
    write_counts,
)
from registry.training.training_windows import shortened
from registry.training.weight_trainer import Losses, curve
from registry.workspace import PathLike, Workspace
from store.arrays import ArraySource, Block, digest_of
from store.catalog import VersionRecord
from store.digest import json_digest
from store.lock import exclusive


@dataclass(frozen=True)
class TrainedSimoe:
    """The result of a training.

    Attributes:
        document: the content of the `expert_training.json` of the experts.
        losses: the losses; those on held-out windows are of the final masks.
        tokens: the number of held-out tokens that `losses.before` and `losses.after` are averaged over.
        experts: the registrations of the experts, by number.
    """

    document: dict[str, Any]
    losses: Losses
    tokens: int
    experts: tuple[Registration, ...]


@dataclass(frozen=True)
class _Result:
    """A trained SIMoE whose experts are about to be registered.

    Attributes:
        simoe: the SIMoE.
        hashed: the base model.
        text: the training text.
        masks: the final masks, bool of shape (n, R).
        own: what all experts' `simoe.json` say alike.
        document: how it was trained.
    """

    simoe: Simoe
    hashed: HashedCheckpoint
    text: Calibration
    masks: Tensor
    own: Mapping[str, Any]
    document: Mapping[str, Any]

    @property
    def matrices(self) -> tuple[str, ...]:
        """The weights that D changes, in the order of the layers."""
        checkpoint = self.hashed.checkpoint
        return checkpoint.family.layer_matrices(checkpoint.architecture)


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
    check_one_process("a SIMoE")
    _check(workspace, name, files, settings)
    version = workspace.resolve(base, kind="base")
    progress, home = workspace.progress, workspace.home
    with ExitStack() as stack:
        checkpoint, holds = stack.enter_context(opened_base(workspace, version.ref))
        size = shortened(settings.seq_len, checkpoint.folder, progress)
        settings.check_window(size)
        settings = replace(settings, seq_len=size)
        windows = read_simoe_windows(files, checkpoint, load_tokenizer(checkpoint.folder), settings, progress)
        device = device_name(settings.device)
        dtype = ("bfloat16" if is_fast("bfloat16", device) else "float32") if settings.dtype == AUTO else settings.dtype
        hashed = hash_checkpoint(checkpoint, progress)
        inputs = settings.document(device, dtype) | {"data": windows.all.digest, "base": hashed.weights}
        simoe = _begin(checkpoint, device, settings)
        weights = settings.weights
        announce(
            progress,
            f"shared weights, {settings.experts} masks and a router",
            sum(part.numel() for part in simoe.parameters() if part.requires_grad),
            steps=weights.steps,
            tokens=weights.steps * weights.batch_size * weights.accumulate * weights.seq_len,
            device=device,
        )
        stack.enter_context(exclusive(home.output_lock(home.path / f"simoe {name}"), f"training {name}"))
        state_path = stack.enter_context(resumable(home.partial, json_digest(["train-simoe", name, inputs]), holds))
        scratch = stack.enter_context(temporary(home.merged, holds, prefix="trainer-"))
        trainer = SimoeTrainer(simoe, simoe.trained, windows, weights, dtype == "bfloat16", simoe.penalty)
        losses = trainer.train(state_path, scratch, progress)
        masks, closed = simoe.final()
        curves = curve(losses)
        document = {"format": 1, "training": inputs} | curves | _curves(simoe, masks, closed, curves["every"])
        if closed:
            remark(progress, f"{closed:,} open gates were closed at the end: the masks had fewer zeros than asked for")
        own = {"base": hashed.weights, "experts": settings.experts, "prompt_tokens": settings.prompt_tokens}
        result = _Result(simoe, hashed, windows.all, masks, own, document)
        experts = _register(workspace, name, version, result, annotations or Annotations())
    return TrainedSimoe(document, losses, windows.predicted, experts)


def _check(workspace: Workspace, name: str, files: Sequence[Path], settings: SimoeTraining) -> None:
    """Check what a training is given (errors as `train_simoe`)."""
    workspace.check_owner()
    check_names(workspace, name, settings.experts, "simoe")
    if not files:
        raise InvalidInputError("there is nothing to train on", "give --data FILE, or several")
    Corpus(files, None)  # refuses what is no file before a weight is read
    check_libraries()


def _begin(checkpoint: Checkpoint, device: str, settings: SimoeTraining) -> Simoe:
    model, family = load_model(checkpoint.folder, "float32", device), checkpoint.family
    names = family.layer_matrices(checkpoint.architecture)
    modules = [family.renamed.get(name, name).removesuffix(".weight") for name in names]
    known = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    if missing := sorted(set(modules) - known):
        raise CheckpointError(
            f"{checkpoint.label}: transformers has no linear module {missing[0]}, so it cannot be trained here",
            "choose another base model",
        )
    return Simoe(model, modules, settings)


def _curves(simoe: Simoe, masks: Tensor, closed: int, every: int) -> dict[str, Any]:
    """Return sparsity, overlap and λ of the steps as `curve` returns losses, and the final masks' in full."""
    record = simoe.record.detach().double().cpu()
    means = [part.mean(dim=0).tolist() for part in record.split(every)]
    curves = {name: [float(point[column]) for point in means] for column, name in enumerate(CURVES)}
    final = {
        "sparsity": float(1 - masks.double().mean()),
        "of_experts": [float(1 - mask.double().mean()) for mask in masks],
        "overlap": overlap_matrix(masks.float()).double().tolist(),
        "closed": closed,
    }
    return {"curves": curves, "masks": final}


def _register(
    workspace: Workspace, name: str, base: VersionRecord, result: _Result, annotations: Annotations
) -> tuple[Registration, ...]:
    """Register every expert with its arrays."""
    count = len(result.masks)
    delta = delta_digest({array: digest_of(source) for array, source in _deltas(result)})
    registrations = []
    for number in range(count):
        document = {**result.own, "delta": delta, "number": number + 1}
        own = {SIMOE_FILE: pack_simoe(document), EXPERT_TRAINING: json.dumps(result.document, indent=2).encode()}
        write = partial(_write, result=result, number=number, own=own)
        with workspace.reading(base):
            registrations.append(
                register_trained(workspace, copy_name(name, number + 1, count), "expert", annotations, write)
            )
    return tuple(registrations)


def _write(folder: Path, result: _Result, number: int, own: Mapping[str, bytes]) -> None:
    """Write the checkpoint of one expert: the base model with diag(z) D added, and the expert's own files."""
    checkpoint = result.hashed.checkpoint
    layers = {name: layer for layer, name in enumerate(result.matrices)}
    streams = [
        Stream(
            name,
            checkpoint.dtype_of(name),
            checkpoint.shapes[name],
            partial(_blocks, result, name, layers.get(name), result.masks[number]),
        )
        for name in (*checkpoint.trunk, *checkpoint.mlp)
    ]
    arrays = [Stream(name, source.dtype, source.shape, source.blocks) for name, source in _arrays(result, number)]
    nbytes = sum(stream.nbytes for stream in (*streams, *arrays))
    with fresh_folder(folder, replace=None, nbytes=nbytes) as written:
        write_weights(written, streams, lambda _: None)
        write_shard(written / SIMOE_ARRAYS, arrays)
        files = {name: data for name, data in result.hashed.files.items() if name not in OWN_FILES}
        write_files(written, files | dict(own))
        write_counts(written, checkpoint, result.text)


def _blocks(result: _Result, name: str, layer: int | None, mask: Tensor) -> Iterator[Block]:
    """Yield a tensor of an expert: the base model's own bytes, or with the rows of D that its mask opens."""
    checkpoint = result.hashed.checkpoint
    source = checkpoint.source(name)
    if layer is None:
        yield from source.blocks()
        return
    delta = result.simoe.deltas[layer].detach().to("cpu", torch_dtype(source.dtype))
    own, start = mask.cpu().split(result.simoe.outputs)[layer], 0
    for block in source.blocks():
        weight = to_tensor(block, source.dtype)
        rows = slice(start, start + len(weight))
        yield to_block(result.simoe.expert(weight, delta[rows], own[rows]).to(torch_dtype(source.dtype)))
        start = rows.stop


def _deltas(result: _Result) -> Iterator[tuple[str, ArraySource]]:
    """Yield (name, array) of D, in the dtypes of the tensors that it changes."""
    for name, delta in zip(result.matrices, result.simoe.deltas, strict=True):
        dtype = result.hashed.checkpoint.dtype_of(name)
        rounded = partial(_rounded, delta, dtype)
        yield f"{DELTA}{name}", ArraySource(dtype, tuple(delta.shape), rounded)


def _rounded(delta: Tensor, dtype: str) -> Iterator[Block]:
    return ArraySource.of(to_block(delta.detach().to(torch_dtype(dtype))), dtype).blocks()


def _arrays(result: _Result, number: int) -> Iterator[tuple[str, ArraySource]]:
    """Yield (name, array) of one expert's arrays."""
    yield from _deltas(result)
    yield MASK, ArraySource.of(to_block(pack_bits(result.masks[number])), "uint8")
    yield ROW, ArraySource.of(to_block(result.simoe.router[number]), "float32")
