"""Training of a composed folder on text, into a new folder: of its routers alone, or of its weights."""

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from registry.checkpoint.model_files import read_config
from registry.composition.trained import NAMED, PROJECTORS, ROUTERS
from registry.errors import InvalidInputError
from registry.hosts.host import NORM_TOPK_PROB
from registry.io.torch_blocks import to_block, torch_dtype
from registry.io.work_dirs import resumable, temporary
from registry.progress import Progress
from registry.runtime.loading import device_name, load_model, load_tokenizer
from registry.training import sharded
from registry.training.from_base import check_libraries
from registry.training.launcher import Processes, check_alone, joined
from registry.training.loop import Losses, curve, train
from registry.training.mixture_weights import (
    BalanceLoss,
    changed_tensors,
    check_several,
    let_train,
    trained_weights,
)
from registry.training.parent import Parent, check_copies_differ, check_loaded, keep_trained, open_parent
from registry.training.router_trainer import RouterTrainer
from registry.training.settings import MixtureTraining, TrainSettings, announce
from registry.training.training_windows import Windows, read_windows, shortened
from registry.training.weight_trainer import WeightTrainer, device_and_dtype
from registry.workspace import PathLike, Workspace
from store.arrays import ArraySource
from store.digest import json_digest
from store.lock import exclusive

TOP_K = 2
"""Least experts per token of a mixture whose weights train: the weight of a single one is 1, without a gradient."""


@dataclass(frozen=True)
class Trained:
    """The result of a training: the digest of the trained composition, and the document that it covers.

    `before` and `after` are the language-model losses (nats per token, the mean over `tokens`) on held-out windows of
    the parent and of what was written.
    """

    digest: str
    document: dict[str, Any]
    before: float
    after: float
    tokens: int


def train_mixture(
    workspace: Workspace,
    folder: PathLike,
    out: PathLike,
    data: Sequence[str],
    settings: TrainSettings | MixtureTraining,
    *,
    force: bool = False,
    record: bool = True,
) -> Trained:
    """Train a composed folder, with `TrainSettings` its routers alone, and write the trained composition to `out`.

    Arguments and errors are those of `Registry.train`. An interrupted training continues when it is started again; on
    one machine with one number of threads and of processes, it gives the same bytes. Under a launcher all processes
    call this, the main one writes, and all return the same (`training.launcher`).
    """
    if isinstance(settings, MixtureTraining) and settings.train == ROUTERS:
        settings = settings.routers
    part = ROUTERS if isinstance(settings, TrainSettings) else settings.train
    folder, out = Path(folder).absolute(), Path(out).absolute()
    if part in (ROUTERS, PROJECTORS):
        check_alone(f"{'routers alone' if part == ROUTERS else part} train")
    with ExitStack() as stack:
        processes = stack.enter_context(joined())
        workspace = processes.quiet(workspace)
        home, progress = workspace.home, workspace.progress
        if not isinstance(settings, TrainSettings):
            settings.check_processes(processes.count)
            check_libraries()
        parent, members, used = open_parent(workspace, folder, part)
        settings = replace(settings, seq_len=shortened(settings.seq_len, folder, progress))
        if part == ROUTERS:
            check_copies_differ(workspace, parent)
        elif parent.composed.manifest.recipe.output.has_projectors:
            check_several(parent, part, settings.seq_len)
        else:
            _check_has_gradient(parent, len(members))
        if isinstance(settings, TrainSettings):
            device, dtype = device_name(settings.device), settings.dtype
            config = read_config(folder)
            candidates = settings.candidates(
                int(config.get("num_experts_per_tok", 1)),
                len(members),
                renormalizes=config.get(NORM_TOPK_PROB, True),
            )
            inputs = settings.document(candidates, torch.device(device).type)
        else:
            device, dtype = device_and_dtype(settings)
            inputs = settings.document(torch.device(device).type, dtype, processes.count)
        with workspace.reading(*used):
            windows = read_windows(data, members, load_tokenizer(folder), settings)
        inputs["data"] = windows.all.digest
        processes.check_same(json_digest([parent.composed.digest, inputs]))
        announce(progress, NAMED[part][0], trained_weights(parent, part), settings, device, processes.count)
        holds = [version.digest for version in used]
        kind = "train-router" if part == ROUTERS else "train"
        key = json_digest([kind, parent.composed.digest, parent.composed.files, inputs])
        if processes.is_main:
            stack.enter_context(exclusive(home.output_lock(out), f"training into {out}"))
        state_path = stack.enter_context(resumable(home.partial if processes.is_main else None, key, holds))
        if isinstance(settings, TrainSettings):
            model = load_model(folder, dtype, settings.device)
            check_loaded(parent, model, windows.all, len(members))
            trainer = RouterTrainer(model, windows, settings, candidates)
            _, before = train(trainer, state_path, progress)
            tensors = _rounded_routers(trainer, parent)
            after = trainer.loss()
            digest = hashlib.sha256(b"".join(block.tobytes() for one in tensors.values() for block in one.blocks()))
            training: dict[str, Any] = {"routers": digest.hexdigest()}
        else:
            model = sharded.load(folder, device, processes, fsdp=settings.fsdp)
            check_loaded(parent, model, windows.all, len(members))
            losses = _train_weights(model, windows, settings, device, dtype, processes, state_path, progress)
            before, after, training, whole = losses.before, losses.after, curve(losses), {}
            scratch = stack.enter_context(temporary(home.merged, holds, prefix="training-"))
            if settings.fsdp:
                whole = sharded.gather(model, scratch / "gathered.safetensors" if processes.is_main else None)
            if not processes.is_main:
                digest, content = processes.of_main(None)
                return Trained(digest, content, before, after, windows.predicted)
            tensors = changed_tensors(model, parent, part, scratch, whole)
        trained = keep_trained(workspace, parent, used, tensors, inputs | training, out, replace=force, record=record)
        content = dict(trained.content)
        processes.of_main([trained.digest, content])
    return Trained(trained.digest, content, before, after, windows.predicted)


def _rounded_routers(trainer: RouterTrainer, parent: Parent) -> dict[str, ArraySource]:
    """Return the trained routers in the dtypes of the folder, and give the model these, so that its loss is theirs."""
    tensors = {}
    for gate, weight in zip(trainer.gates, trainer.weights(), strict=True):
        name, _ = parent.gates[gate.layer]
        dtype = parent.dtype_of(name)
        rounded = weight.to(torch_dtype(dtype))
        gate.weight.data.copy_(rounded)
        tensors[name] = ArraySource.of(to_block(rounded), dtype)
    return tensors


def _train_weights(
    model: Any,
    windows: Windows,
    settings: MixtureTraining,
    device: str,
    dtype: str,
    processes: Processes,
    state_path: Path | None,
    progress: Progress,
) -> Losses:
    """Train a loaded mixture in place, and return the losses; with `fsdp` it is sharded afterwards."""
    let_train(model, settings.train)
    if settings.fsdp:
        sharded.shard(model, processes, device)
    balance = None if settings.train == PROJECTORS else BalanceLoss(model, settings.balance or 0.0)
    parts = [part for part in model.parameters() if part.requires_grad]
    penalty = balance.take if balance else None
    trainer = WeightTrainer(model, parts, windows, settings, dtype == "bfloat16", penalty, processes)
    with balance.recorded() if balance else nullcontext():
        return trainer.train(state_path, progress)


def _check_has_gradient(parent: Parent, members: int) -> None:
    """Raise InvalidInputError unless each token's output depends on the router's weights of several experts."""
    if not parent.gates:
        raise InvalidInputError(
            f"{parent.folder} is not a mixture of experts", "compose one: reg compose --experts … --top-k 2 --out DIR"
        )
    if members < TOP_K:
        raise InvalidInputError(
            f"{parent.folder} is a composition of one expert: there is nothing to route",
            "train that expert: reg train-expert NAME --base EXPERT --data FILE",
        )
    config = read_config(parent.folder)
    top_k, renormalizes = config.get("num_experts_per_tok", 1), config.get(NORM_TOPK_PROB, True)
    if renormalizes and (not isinstance(top_k, int) or top_k < TOP_K):
        copies = parent.composed.manifest.from_base is not None
        raise InvalidInputError(
            f"{parent.folder} sends each token to {top_k} expert with weight 1, so its routers would get no gradient",
            f"compose it again with --top-k {TOP_K}, as BTX does, and train that"
            + ("" if copies else f"; or give --train {ROUTERS}"),  # which equal copies refuse
        )
