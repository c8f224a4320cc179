"""Training of a composed mixture's weights on text, into a new folder."""

import importlib.util
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from registry.checkpoint.model_files import read_config
from registry.composition.trained import NAMED, PROJECTORS, ROUTERS
from registry.errors import InvalidInputError, StorageError
from registry.hosts.host import NORM_TOPK_PROB
from registry.io.dtypes import AUTO
from registry.io.work_dirs import resumable, temporary
from registry.runtime.loading import device_name, load_tokenizer
from registry.runtime.upcast import is_fast
from registry.training.announcement import announce
from registry.training.job import Job
from registry.training.keep_trained import keep_trained
from registry.training.mixture.mixture_settings import TOP_K, MixtureTraining
from registry.training.mixture.mixture_weights import changed_tensors, trained_weights
from registry.training.mixture.projector_weights import changed_projectors, check_projectors, projector_weights
from registry.training.mixture.run_mixture_training import load_mixture, run_mixture_training
from registry.training.parent import Parent, check_loaded, open_parent
from registry.training.processes import Processes, leading
from registry.training.train_router import Trained, train_router
from registry.training.training_windows import read_windows, shortened
from registry.training.weight_trainer import curve
from registry.workspace import PathLike, Workspace
from store.digest import json_digest
from store.lock import exclusive


def train_mixture(
    workspace: Workspace,
    folder: PathLike,
    out: PathLike,
    data: Sequence[str],
    settings: MixtureTraining,
    *,
    force: bool = False,
    record: bool = True,
) -> Trained:
    """Train weights of the composed `folder`, and write the trained composition to `out`.

    An interrupted training continues when it is started again; on one machine with one number of threads and of
    processes, it gives the same bytes. Under a launcher this is for the main process (`training.processes`).

    Args:
        workspace: the registry of the members.
        folder: a composed folder; its members must be registered and active.
        out: the folder to write; absent, empty, or with `force` an earlier composition other than `folder`.
        data: files of text, or members whose calibration tokens were kept.
        settings: the settings of the training.
        force: allow `out` to be an earlier composition.
        record: store the tensors that change, and record the composition in the catalog.

    Raises:
        OutputError: `out` cannot be written to.
        CheckpointError: `folder` was not composed by this program, was changed since, or does not load.
        NotFoundError: a member is not registered here.
        ConflictError: a member was opted out.
        CalibrationError: there is no text, or it has tokens beyond the model's vocabulary.
        InvalidInputError: routers would get no gradient, there is nothing to train, or a loss is not finite.
        StorageError: the disk is full or refuses, or a library is not installed.
    """
    with leading() as processes:
        if settings.train == ROUTERS:
            return train_router(workspace, folder, out, data, settings.routers, force=force, record=record)
        settings.weights.check_processes(processes.count)
        return _train(
            workspace, Path(folder).absolute(), Path(out).absolute(), data, settings, processes, force, record
        )


def _train(
    workspace: Workspace,
    folder: Path,
    out: Path,
    data: Sequence[str],
    settings: MixtureTraining,
    processes: Processes,
    force: bool,
    record: bool,
) -> Trained:
    if importlib.util.find_spec("accelerate") is None:
        raise StorageError("training needs accelerate", "run: pip install 'expert-registry[train]'")
    home, progress = workspace.home, workspace.progress
    parent, members, used = open_parent(workspace, folder, settings.train)
    if settings.train == PROJECTORS:
        check_projectors(parent)
        if processes.count > 1:
            raise InvalidInputError(
                f"projectors train in one process, and a launcher started {processes.count}",
                "repeat the command without the launcher",
            )
    else:
        _check_has_gradient(parent, len(members))
    settings = replace(settings, seq_len=shortened(settings.seq_len, folder, progress))  # and the steps that it gives
    weights, seq_len = settings.weights, settings.seq_len
    device = device_name(weights.device)
    with workspace.reading(*used):
        windows = read_windows(
            data,
            members,
            load_tokenizer(folder),
            count=weights.steps * weights.batch_size * weights.accumulate,
            seq_len=seq_len,
            seed=weights.seed,
        )
    announce(
        progress,
        NAMED[settings.train][0],
        projector_weights(parent) if settings.train == PROJECTORS else trained_weights(parent, settings.train),
        steps=weights.steps,
        tokens=weights.steps * weights.batch_size * weights.accumulate * seq_len,
        device=device,
        processes=processes.count,
    )
    holds = [version.digest for version in used]
    dtype = ("bfloat16" if is_fast("bfloat16", device) else "float32") if weights.dtype == AUTO else weights.dtype
    inputs = settings.document(seq_len, torch.device(device).type, dtype, processes.count) | {
        "data": windows.all.digest
    }
    key = json_digest(["train", parent.composed.digest, parent.composed.files, inputs])
    with ExitStack() as stack:
        stack.enter_context(exclusive(home.output_lock(out), f"training into {out}"))
        state_path = stack.enter_context(resumable(home.partial, key, holds))
        scratch = stack.enter_context(temporary(home.merged, holds, prefix="training-"))
        job = Job("mixture", folder, settings, device, dtype, windows)
        job.send(processes)
        model = load_mixture(job, processes)
        check_loaded(parent, model, int(windows.all.ids.max()), len(members))
        whole, losses = run_mixture_training(job, model, processes, state_path, scratch, progress)
        if settings.train == PROJECTORS:
            tensors = changed_projectors(model, parent)
        else:
            tensors = changed_tensors(model, parent, settings.train, scratch, whole)

        def document(digests: dict[str, str]) -> dict[str, Any]:
            return inputs | curve(losses) | {"tensors": digests}

        trained = keep_trained(workspace, parent, used, tensors, document, out, replace=force, record=record)
    held_out = int((windows.all.lengths[windows.held_out] - 1).sum())
    return Trained(trained.digest, dict(trained.content), losses.before, losses.after, held_out)


def _check_has_gradient(parent: Parent, members: int) -> None:
    """Check that routers get a gradient: that each token's output depends on the weights of several experts.

    Raises:
        InvalidInputError: it does not.
    """
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
