"""Training of an expert from its base model, and its registration."""

import json
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from registry.calibration import Corpus
from registry.checkpoint import Checkpoint, hash_checkpoint
from registry.checkpoint.annotations import Annotations
from registry.checkpoint.hub_download import is_hub_reference
from registry.checkpoint.model_files import EXPERT_TRAINING
from registry.errors import InvalidInputError
from registry.families.sites import COUNTS
from registry.io.model_folder import check_output
from registry.io.work_dirs import resumable, temporary
from registry.names.reference import check_name, require_list
from registry.names.resolve import check_name_is_free
from registry.registration import Registration, RegistrationRequest, register_checkpoint
from registry.runtime.loading import load_tokenizer
from registry.statistics.settings import PassSettings
from registry.training import sharded
from registry.training.coordinated import WINDOWS, begin_rows, bound_biases
from registry.training.from_base import TrainedFromBase, check_libraries, shared_base
from registry.training.launcher import Processes, joined
from registry.training.loop import Losses, training_document
from registry.training.settings import ExpertTraining, TrainingText, announce
from registry.training.trainable import Trainable, TrainableAdapter
from registry.training.training_paths import base_version
from registry.training.training_windows import (
    HELD_OUT,
    draw_conversations,
    draw_windows,
    make_windows,
    remark_repeats,
    shortened,
)
from registry.training.weight_trainer import WeightTrainer, device_and_dtype
from registry.workspace import PathLike, Workspace
from store.digest import json_digest
from store.lock import exclusive


@dataclass(frozen=True)
class TrainedExpert(TrainedFromBase):
    """The result of a training: the checkpoint folder that is written, or the registration.

    Of several processes the main one alone registers: the results of the others are the same but for that.
    """

    out: Path | None = None
    registration: Registration | None = None


def train_expert(
    workspace: Workspace,
    name: str,
    base: PathLike,
    text: TrainingText,
    settings: ExpertTraining,
    *,
    out: PathLike | None = None,
    annotations: Annotations | None = None,
    keep_calibration: bool = False,
) -> TrainedExpert:
    """Train an expert from a base model, and register it or write it to `out`.

    Arguments and errors are those of `Registry.train_expert`. An interrupted training continues when it is started
    again; on one machine with one number of threads and of processes, it gives the same bytes. Under a launcher all
    processes call this, and the main one writes or registers (`training.launcher`).
    """
    files = [Path(file) for file in require_list(text.own, "data")]
    public = [Path(file) for file in require_list(text.public, "public_data")]
    with ExitStack() as stack:
        processes = stack.enter_context(joined())
        workspace = processes.quiet(workspace)
        check_name(name)
        if not files:
            raise InvalidInputError("there is nothing to train on", "give --data FILE, or several")
        if public and not settings.coordinate:
            raise InvalidInputError(
                "public text is what router rows begin with, and an expert without --coordinate has none",
                "add --coordinate, or drop --public-data",
            )
        Corpus([*files, *public], None)  # refuses what is no file before a weight is read
        check_libraries()
        if out is None:
            workspace.check_owner()
            check_name_is_free(workspace.catalog, name, "expert")
            workspace.catalog.check_alias(name, annotations.alias if annotations else None)
        else:
            check_output(Path(out).absolute(), replace=None)
        settings.check_processes(processes.count)
        checkpoint, holds = stack.enter_context(shared_base(workspace, base, processes))
        is_registered = base_version(workspace.catalog, base) is not None
        if not checkpoint.family.has_table and (settings.lora is None or not (is_registered or out)):
            raise InvalidInputError(
                f"{checkpoint.label}: the layers of {checkpoint.family.model_type!r} models are not in the table of "
                "families, so that an expert of them is an adapter of a registered base model",
                "add --lora 16"
                if is_registered
                else f"reg add-base NAME {shlex.quote(str(base))}; then --base NAME --lora 16",
            )
        scratch = stack.enter_context(temporary(workspace.home.merged, holds, prefix="training-"))
        target = scratch / "expert" if out is None else Path(out).absolute()
        document, losses, tokens = _trained(
            workspace, checkpoint, TrainingText(files, public), settings, target, holds, processes
        )
        if out is not None or not processes.is_main:
            return TrainedExpert(document, losses, tokens, out=None if out is None else target)
        request = RegistrationRequest(
            name,
            target,
            data=files,
            settings=PassSettings(device=settings.device, sites="all" if checkpoint.family.has_table else COUNTS),
            annotations=annotations or Annotations(),
            keep_calibration=keep_calibration,
            base=None if settings.lora is None or is_hub_reference(checkpoint.label) else checkpoint.label,
            allow_unrelated=True,  # it comes from a base model, registered or not
        )
        return TrainedExpert(document, losses, tokens, registration=register_checkpoint(workspace, request))


def _trained(
    workspace: Workspace,
    checkpoint: Checkpoint,
    text: TrainingText,
    settings: ExpertTraining,
    target: Path,
    holds: Sequence[str],
    processes: Processes,
) -> tuple[dict[str, Any], Losses, int]:
    """Write the trained checkpoint to `target`, and return its document, losses, and number of held-out tokens.

    All processes run this alike; the main one alone keeps states, gets weights that are sharded, and writes.
    """
    progress, home = workspace.progress, workspace.home
    settings = replace(settings, seq_len=shortened(settings.seq_len, checkpoint.folder, progress))
    device, dtype = device_and_dtype(settings)
    tokenizer, vocabulary = load_tokenizer(checkpoint.folder), checkpoint.architecture.vocab_size
    chats = draw_conversations(text.own, tokenizer, vocabulary, settings, progress)
    own = chats or draw_windows(text.own, tokenizer, vocabulary, settings)
    public = draw_windows(text.public, tokenizer, vocabulary, settings, WINDOWS) if text.public else None
    windows = make_windows([own], settings.seq_len, settings.seed, written=None if chats is None else chats.written)
    remark_repeats(progress, windows, settings.windows + HELD_OUT)
    inputs = settings.document(device, dtype, processes.count) | {"data": windows.all.digest, "base": None}
    if public is not None:
        inputs["public"] = public.digest
    processes.check_same(json_digest(inputs))
    hashed = hash_checkpoint(checkpoint, progress) if processes.is_main else None
    inputs["base"] = processes.of_main(None if hashed is None else hashed.weights)
    with ExitStack() as stack:
        above = home.partial if processes.is_main else None
        state_path = stack.enter_context(resumable(above, json_digest(["train-expert", inputs]), holds))
        model = sharded.load(checkpoint.folder, device, processes, fsdp=settings.fsdp)
        trainable = (Trainable if settings.lora is None else TrainableAdapter)(model, checkpoint, settings)
        count = sum(part.numel() for part in trainable.parameters)
        announce(progress, settings.trained_part(checkpoint.label), count, settings, device, processes.count)
        if settings.fsdp:
            sharded.shard(trainable.model, processes, device)
        if public is not None:
            both = windows.take(windows.training[:WINDOWS]), (public.ids.long(), public.keep)
            begin_rows(trainable.model, trainable.layers, *both, settings.batch_size, processes)
        trainer = WeightTrainer(
            trainable.model,
            trainable.parameters,
            windows,
            settings,
            dtype == "bfloat16",
            processes=processes,
            ascend=lambda _step: bound_biases(trainable.layers),
        )
        losses = trainer.train(state_path, progress)
        document = training_document(inputs, losses)
        if settings.fsdp:
            scratch = stack.enter_context(temporary(home.merged, holds, prefix="trainer-"))
            trainable.gather(scratch / "trained.safetensors" if processes.is_main else None)
        if hashed is not None:
            files = {EXPERT_TRAINING: json.dumps(document, indent=2).encode()}
            with exclusive(home.output_lock(target), f"training into {target}"):
                trainable.write(target, hashed, files, progress)
    return document, losses, windows.predicted
