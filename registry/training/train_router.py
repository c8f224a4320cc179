"""Training of a composed folder's routers on text, into a new folder."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from registry.checkpoint.model_files import read_config
from registry.errors import CalibrationError, CheckpointError, InvalidInputError, OutputError
from registry.io.dtypes import NAMES
from registry.io.model_folder import check_output
from registry.io.torch_blocks import torch_dtype
from registry.io.work_dirs import resumable
from registry.names.reference import require_list
from registry.runtime.gates import gates
from registry.runtime.loading import device_name, load_model, load_tokenizer
from registry.training.parent import Parent, members_of, read_parent
from registry.training.settings import TrainSettings
from registry.training.trainer import Trainer
from registry.training.training_windows import make_windows, read_source, shortened
from registry.training.write_trained import gate_bytes, write_trained
from registry.workspace import PathLike, Workspace
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
        InvalidInputError: there is only one expert, the settings do not fit, or a loss is not finite.
        StorageError: the disk is full or refuses.
    """
    workspace.check_owner()
    catalog, home, progress = workspace.catalog, workspace.home, workspace.progress
    folder, out = Path(folder).absolute(), Path(out).absolute()
    if out.resolve().is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(out.resolve()):
        raise OutputError(
            f"{out} and {folder} contain one another, and the parent is never overwritten", "choose another --out"
        )
    check_output(out, replace=force)
    if not require_list(data, "data"):
        raise InvalidInputError("there is nothing to train on", "give --data FILE, or several")
    parent = read_parent(folder, progress)
    members, used = members_of(parent, workspace)
    settings = replace(settings, seq_len=shortened(settings.seq_len, folder, progress))
    candidates = settings.candidates(int(read_config(folder).get("num_experts_per_tok", 1)), len(members))
    tokenizer = load_tokenizer(folder)
    with workspace.reading(*used):
        windows = make_windows(
            [read_source(source, members, tokenizer, settings, len(data)) for source in data],
            settings.seq_len,
            settings.seed,
        )
    with exclusive(home.output_lock(out), f"training into {out}"):
        model = load_model(folder, settings.dtype, settings.device)
        _check(parent, model, int(windows.all.ids.max()), len(members))
        kind = torch.device(device_name(settings.device)).type
        inputs = settings.document(candidates, kind) | {"data": windows.all.digest}
        key = json_digest(["train-router", parent.composed.digest, parent.composed.files, inputs])
        with resumable(home.partial, key, [version.digest for version in used]) as state_path:
            trainer = Trainer(model, windows, settings, candidates)
            before = trainer.train(state_path, progress)
            routers = gate_bytes(parent, dict(zip(sorted(parent.gates), trainer.weights(), strict=True)))
            after = _loss_as_written(trainer, parent)
            result = hashlib.sha256(b"".join(routers[layer] for layer in sorted(routers))).hexdigest()
            document = parent.composed.document | {
                "parent": parent.composed.digest,
                "training": inputs | {"routers": result},
            }
            digest = json_digest(document)
            write_trained(
                parent,
                routers,
                document,
                digest,
                out,
                replace=force,
                record=lambda: catalog.record_composition(digest, document, used, str(out)) if record else None,
                progress=progress,
            )
    return Trained(digest, document, before, after, int((windows.all.lengths[windows.held_out] - 1).sum()))


def _loss_as_written(trainer: Trainer, parent: Parent) -> float:
    """Return the held-out loss with routers rounded to the dtype of the folder."""
    for gate, weight in zip(trainer.gates, trainer.weights(), strict=True):
        gate.weight.data.copy_(weight.to(torch_dtype(NAMES[parent.gates[gate.layer][1].dtype])))
    return trainer.loss()


def _check(parent: Parent, model: Any, largest: int, members: int) -> None:
    """Check that the loaded routers are those of the folder, and that the model's vocabulary has every token.

    Raises:
        CheckpointError: the shapes of the routers differ.
        CalibrationError: a token is beyond the vocabulary.
    """
    loaded = {gate.layer: tuple(gate.weight.shape) for gate in gates(model)}
    stored = {layer: tensor.shape for layer, (_, tensor) in parent.gates.items()}
    if loaded != stored or any(shape[0] != members for shape in loaded.values()):
        raise CheckpointError(
            f"{parent.folder}: its files hold routers of shapes {stored}, the model {loaded}, for {members} members",
            "compose it again: reg compose --experts … --out DIR",
        )
    if largest >= (known := model.get_input_embeddings().num_embeddings):
        raise CalibrationError(
            f"{parent.folder}: its tokenizer gives token {largest}, the model knows {known}",
            "put the tokenizer that the model was composed with into the folder",
        )
