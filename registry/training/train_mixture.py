"""Training of a composed folder on text, into a new folder: of its routers alone, or of its weights."""

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from registry.checkpoint.model_files import read_config
from registry.composition.trained import NAMED, PROJECTORS, ROUTERS
from registry.errors import InvalidInputError
from registry.hosts.host import NORM_TOPK_PROB
from registry.io.torch_blocks import to_block, torch_dtype
from registry.io.work_dirs import resumable, temporary
from registry.progress import Progress
from registry.runtime.loading import device_name, load_model, load_tokenizer
from registry.training.from_base import check_libraries
from registry.training.job import Job
from registry.training.mixture_weights import (
    BalanceLoss,
    changed_tensors,
    check_projectors,
    let_train,
    trained_weights,
)
from registry.training.parent import Parent, check_copies_differ, check_loaded, keep_trained, open_parent
from registry.training.processes import Processes, leading
from registry.training.router_trainer import RouterTrainer
from registry.training.settings import ExpertTraining, MixtureTraining, TrainSettings, announce
from registry.training.sharding import gather, shard
from registry.training.training_windows import read_windows, shortened
from registry.training.weight_trainer import Losses, WeightTrainer, curve, device_and_dtype
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
    one machine with one number of threads and of processes, it gives the same bytes. Under a launcher this is for the
    main process (`training.processes`).
    """
    if isinstance(settings, MixtureTraining) and settings.train == ROUTERS:
        settings = settings.routers
    part = ROUTERS if isinstance(settings, TrainSettings) else settings.train
    folder, out = Path(folder).absolute(), Path(out).absolute()
    home, progress = workspace.home, workspace.progress
    with ExitStack() as stack:
        processes = stack.enter_context(leading())
        if isinstance(settings, TrainSettings):
            processes.check_alone("routers alone train")
        else:
            settings.weights.check_processes(processes.count)
            check_libraries()
        parent, members, used = open_parent(workspace, folder, part)
        if part == ROUTERS:
            check_copies_differ(workspace, parent)
        elif part == PROJECTORS:
            check_projectors(parent)
            processes.check_alone("projectors train")
        else:
            _check_has_gradient(parent, len(members))
        settings = replace(settings, seq_len=shortened(settings.seq_len, folder, progress))
        if isinstance(settings, TrainSettings):
            amount: TrainSettings | ExpertTraining = settings
            device, dtype = device_name(settings.device), settings.dtype
            candidates = settings.candidates(int(read_config(folder).get("num_experts_per_tok", 1)), len(members))
            inputs = settings.document(candidates, torch.device(device).type)
        else:
            amount = settings.weights
            device, dtype = device_and_dtype(amount)
            inputs = settings.document(torch.device(device).type, dtype, processes.count)
        with workspace.reading(*used):
            windows = read_windows(data, members, load_tokenizer(folder), amount)
        inputs["data"] = windows.all.digest
        announce(progress, NAMED[part][0], trained_weights(parent, part), amount, device, processes.count)
        holds = [version.digest for version in used]
        kind = "train-router" if part == ROUTERS else "train"
        key = json_digest([kind, parent.composed.digest, parent.composed.files, inputs])
        stack.enter_context(exclusive(home.output_lock(out), f"training into {out}"))
        state_path = stack.enter_context(resumable(home.partial, key, holds))
        if isinstance(settings, TrainSettings):
            model = load_model(folder, dtype, settings.device)
            check_loaded(parent, model, windows.all, len(members))
            trainer = RouterTrainer(model, windows, settings, candidates)
            before = trainer.train(state_path, progress)
            tensors = _rounded_routers(trainer, parent)
            after = trainer.loss()
            digest = hashlib.sha256(b"".join(block.tobytes() for one in tensors.values() for block in one.blocks()))
            training: dict[str, Any] = {"routers": digest.hexdigest()}
        else:
            scratch = stack.enter_context(temporary(home.merged, holds, prefix="training-"))
            job = Job(folder, settings, device, dtype, windows)
            job.send(processes)
            model = job.load(processes)
            check_loaded(parent, model, windows.all, len(members))
            whole, losses = run_mixture_training(job, model, processes, state_path, scratch, progress)
            tensors = changed_tensors(model, parent, part, scratch, whole)
            before, after = losses.before, losses.after
            training = curve(losses)
        trained = keep_trained(workspace, parent, used, tensors, inputs | training, out, replace=force, record=record)
    return Trained(trained.digest, dict(trained.content), before, after, windows.predicted)


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


def run_mixture_training(
    job: Job, model: Any, processes: Processes, state_path: Path | None, scratch: Path, progress: Progress
) -> tuple[dict[str, Tensor], Losses]:
    """Train a loaded mixture in place; return its weights by name if they are sharded, else none, and the losses.

    All processes run this alike; the main one has the path of states, and gets the sharded weights.
    """
    settings = job.settings
    let_train(model, settings.train)
    if settings.fsdp:
        shard(model, processes, job.device)
    balance = None if settings.train == PROJECTORS else BalanceLoss(model, settings.load_balance)
    trainer = WeightTrainer(
        model,
        [part for part in model.parameters() if part.requires_grad],
        job.windows,
        settings.weights,
        job.dtype == "bfloat16",
        balance.take if balance else None,
        processes,
    )
    with balance.recorded() if balance else nullcontext():
        losses = trainer.train(state_path, scratch, progress)
    return gather(model, scratch / "gathered.safetensors", processes) if settings.fsdp else {}, losses


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
