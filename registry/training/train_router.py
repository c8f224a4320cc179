"""Training of a composed folder's routers on text, into a new folder."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from registry.checkpoint.model_files import read_config
from registry.composition.trained import NAMED, ROUTERS
from registry.errors import InvalidInputError
from registry.io.torch_blocks import to_block, torch_dtype
from registry.io.work_dirs import resumable
from registry.runtime.loading import device_name, load_model, load_tokenizer
from registry.training.announcement import announce
from registry.training.keep_trained import keep_trained
from registry.training.parent import Parent, check_copies_differ, check_loaded, open_parent
from registry.training.processes import leading
from registry.training.settings import TrainSettings
from registry.training.trainer import Trainer
from registry.training.training_windows import read_windows, shortened
from registry.workspace import PathLike, Workspace
from store.arrays import ArraySource, Block
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
        if processes.count > 1:
            raise InvalidInputError(
                f"routers alone train in one process, and a launcher started {processes.count}",
                "repeat the command without the launcher",
            )
    folder, out = Path(folder).absolute(), Path(out).absolute()
    home, progress = workspace.home, workspace.progress
    parent, members, used = open_parent(workspace, folder, ROUTERS)
    check_copies_differ(workspace, parent)
    settings = replace(settings, seq_len=shortened(settings.seq_len, folder, progress))
    candidates = settings.candidates(int(read_config(folder).get("num_experts_per_tok", 1)), len(members))
    with workspace.reading(*used):
        windows = read_windows(
            data,
            members,
            load_tokenizer(folder),
            count=settings.steps * settings.batch_size,
            seq_len=settings.seq_len,
            seed=settings.seed,
        )
    announce(
        progress,
        NAMED[ROUTERS][0],
        sum(math.prod(stored.shape) for _, stored in parent.gates.values()),
        steps=settings.steps,
        tokens=settings.steps * settings.batch_size * settings.seq_len,
        device=device_name(settings.device),
    )
    with exclusive(home.output_lock(out), f"training into {out}"):
        model = load_model(folder, settings.dtype, settings.device)
        check_loaded(parent, model, int(windows.all.ids.max()), len(members))
        kind = torch.device(device_name(settings.device)).type
        inputs = settings.document(candidates, kind) | {"data": windows.all.digest}
        key = json_digest(["train-router", parent.composed.digest, parent.composed.files, inputs])
        with resumable(home.partial, key, [version.digest for version in used]) as state_path:
            trainer = Trainer(model, windows, settings, candidates)
            before = trainer.train(state_path, progress)
            routers = _routers(parent, trainer)
            after = _loss_as_written(trainer, parent)
            result = hashlib.sha256(b"".join(block.tobytes() for block in routers.values())).hexdigest()
            names = {layer: name for layer, (name, _) in parent.gates.items()}
            tensors = {
                names[layer]: ArraySource.of(block, parent.dtype_of(names[layer])) for layer, block in routers.items()
            }

            def document(_: dict[str, str]) -> dict[str, Any]:
                return inputs | {"routers": result}

            trained = keep_trained(workspace, parent, used, tensors, document, out, replace=force, record=record)
    held_out = int((windows.all.lengths[windows.held_out] - 1).sum())
    return Trained(trained.digest, dict(trained.content), before, after, held_out)


def _routers(parent: Parent, trainer: Trainer) -> dict[int, Block]:
    """Return layer → its trained router (E, H), rounded to the dtype of the parent's file."""
    weights = dict(zip(sorted(parent.gates), trainer.weights(), strict=True))
    return {
        layer: to_block(weights[layer].to(torch_dtype(parent.dtype_of(parent.gates[layer][0]))))
        for layer in sorted(parent.gates)
    }


def _loss_as_written(trainer: Trainer, parent: Parent) -> float:
    """Return the held-out loss with routers rounded to the dtype of the folder."""
    for gate, weight in zip(trainer.gates, trainer.weights(), strict=True):
        gate.weight.data.copy_(weight.to(torch_dtype(parent.dtype_of(parent.gates[gate.layer][0]))))
    return trainer.loss()
