"""Training of a composed folder's routers on text, into a new folder."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from registry.checkpoint.model_files import read_config
from registry.composition.trained.trained_parts import NAMED, ROUTERS
from registry.io.torch_blocks import to_block, torch_dtype
from registry.io.work_dirs import resumable
from registry.runtime.loading import device_name, load_model, load_tokenizer
from registry.training.parent import check_copies_differ, check_loaded, keep_trained, open_parent
from registry.training.processes import leading
from registry.training.router_trainer import RouterTrainer
from registry.training.settings import TrainSettings, announce
from registry.training.training_windows import read_windows, shortened
from registry.workspace import PathLike, Workspace
from store.arrays import ArraySource
from store.digest import json_digest
from store.lock import exclusive


@dataclass(frozen=True)
class Trained:
    """The result of a training.

    Attributes:
        digest: the digest of the trained composition.
        document: the document that the digest covers.
        before: language-model loss (nats per token) on held-out windows with the parent's routers.
        after: the same loss with the trained routers, as written.
        tokens: the number of tokens that the losses are averaged over.
    """

    digest: str
    document: dict[str, Any]
    before: float
    after: float
    tokens: int


def train_router(
    workspace: Workspace,
    folder: PathLike,
    out: PathLike,
    data: Sequence[str],
    settings: TrainSettings,
    *,
    force: bool = False,
    record: bool = True,
) -> Trained:
    """Train the routers of the composed `folder`, and write the trained composition to `out`.

    An interrupted training continues when it is started again, and gives the same bytes. On one machine with one number
    of threads, equal inputs give equal bytes.

    Args:
        workspace: the registry of the members.
        folder: a composed folder; its members must be registered and active.
        out: the folder to write; absent, empty, or with `force` an earlier composition other than `folder`.
        data: files of text, or members whose calibration tokens were kept.
        settings: the settings of the training.
        force: allow `out` to be an earlier composition.
        record: record the composition in the catalog.

    Raises:
        OutputError: `out` cannot be written to.
        CheckpointError: `folder` was not composed by this program, was changed since, or does not load.
        NotFoundError: a member is not registered here.
        ConflictError: a member was opted out.
        CalibrationError: there is no text, or it has tokens beyond the model's vocabulary.
        InvalidInputError: there is only one expert, all are equal, the settings do not fit, or a loss is not finite.
        StorageError: the disk is full or refuses.
    """
    with leading() as processes:
        processes.check_alone("routers alone train")
    folder, out = Path(folder).absolute(), Path(out).absolute()
    home, progress = workspace.home, workspace.progress
    parent, members, used = open_parent(workspace, folder, ROUTERS)
    check_copies_differ(workspace, parent)
    settings = replace(settings, seq_len=shortened(settings.seq_len, folder, progress))
    candidates = settings.candidates(int(read_config(folder).get("num_experts_per_tok", 1)), len(members))
    with workspace.reading(*used):
        windows = read_windows(data, members, load_tokenizer(folder), settings)
    device, count = device_name(settings.device), sum(math.prod(stored.shape) for _, stored in parent.gates.values())
    announce(progress, NAMED[ROUTERS][0], count, settings, device)
    with exclusive(home.output_lock(out), f"training into {out}"):
        model = load_model(folder, settings.dtype, settings.device)
        check_loaded(parent, model, int(windows.all.ids.max()), len(members))
        inputs = settings.document(candidates, torch.device(device).type) | {"data": windows.all.digest}
        key = json_digest(["train-router", parent.composed.digest, parent.composed.files, inputs])
        with resumable(home.partial, key, [version.digest for version in used]) as state_path:
            trainer = RouterTrainer(model, windows, settings, candidates)
            before = trainer.train(state_path, progress)
            tensors, result = {}, hashlib.sha256()
            for gate, weight in zip(trainer.gates, trainer.weights(), strict=True):
                name, _ = parent.gates[gate.layer]
                rounded = weight.to(torch_dtype(parent.dtype_of(name)))
                gate.weight.data.copy_(rounded)  # so that the loss is that of what is written
                block = to_block(rounded)
                tensors[name] = ArraySource.of(block, parent.dtype_of(name))
                result.update(block.tobytes())
            after = trainer.loss()
            training = inputs | {"routers": result.hexdigest()}
            trained = keep_trained(
                workspace, parent, used, tensors, lambda _: training, out, replace=force, record=record
            )
    return Trained(trained.digest, dict(trained.content), before, after, windows.predicted)
