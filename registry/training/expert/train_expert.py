"""Training of an expert from its base model, and its registration."""

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from registry.calibration import Calibration, Corpus, random_places
from registry.checkpoint import Checkpoint, HashedCheckpoint, hash_checkpoint
from registry.checkpoint.annotations import Annotations
from registry.checkpoint.model_files import EXPERT_TRAINING, OWN_FILES, ROUTER_FILE
from registry.checkpoint.open import open_checkpoint
from registry.checkpoint.trained_files import pack_rows
from registry.checkpoint.version_files import StoredWeights
from registry.composition.stored import write_dense
from registry.errors import InvalidInputError, StorageError
from registry.io.dtypes import AUTO
from registry.io.model_folder import check_output, fresh_folder, write_files, write_weights
from registry.io.work_dirs import resumable, temporary
from registry.member import load_member
from registry.names.reference import check_name, require_list
from registry.names.resolve import check_name_is_free
from registry.progress import remark
from registry.registration import Registration, RegistrationRequest, open_candidate, register_expert
from registry.runtime.loading import device_name, load_tokenizer
from registry.runtime.upcast import is_fast
from registry.statistics.settings import PassSettings
from registry.training.announcement import announce
from registry.training.expert.expert_settings import ExpertTraining, TrainingText
from registry.training.expert.initial_rows import WINDOWS as INITIAL
from registry.training.expert.run_training import run_training
from registry.training.expert.trainable import Trainable, trained_weights
from registry.training.job import Job
from registry.training.processes import Processes, leading
from registry.training.training_paths import base_version
from registry.training.training_windows import HELD_OUT, Windows, check_vocabulary, make_windows, shortened
from registry.training.weight_trainer import Losses, curve
from registry.workspace import PathLike, Workspace
from store.digest import json_digest
from store.lock import exclusive


@dataclass(frozen=True)
class TrainedExpert:
    """The result of a training.

    Attributes:
        document: the content of the checkpoint's `expert_training.json`.
        losses: the losses.
        tokens: the number of held-out tokens that `losses.before` and `losses.after` are averaged over.
        out: the checkpoint folder that was written, or None if the expert was registered.
        registration: the registration, or None with `out`.
    """

    document: dict[str, Any]
    losses: Losses
    tokens: int
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
    """Train an expert from a base model, and register it, or write its checkpoint to `out`.

    An interrupted training continues when it is started again; on one machine with one number of threads and of
    processes, it gives the same bytes. Under a launcher this is for the main process (`training.processes`).

    Args:
        workspace: the registry.
        name: the expert's name.
        base: a registered base model or expert, a folder, or `hf://ORG/NAME[@REVISION]`.
        text: files of text; public ones only with `settings.coordinate`.
        settings: the settings of the training.
        out: a folder to write the checkpoint to, instead of registering it; absent or empty.
        annotations: tags, license and alias of the version.
        keep_calibration: store the calibration tokens too.

    Raises:
        CheckpointError: the base model cannot be trained here.
        CalibrationError: there is no text, or it has tokens beyond the model's vocabulary.
        NotFoundError: there is no such base model.
        ConflictError: `name` is a base model's.
        InvalidInputError: a loss is not finite, or there is public text without `coordinate`.
        OutputError: `out` holds something.
        StorageError: the disk is full or refuses, or a library is not installed.
    """
    files = [Path(file) for file in require_list(text.own, "data")]
    public = [Path(file) for file in require_list(text.public, "public_data")]
    with ExitStack() as stack:
        processes = stack.enter_context(leading())
        _check(workspace, name, files, public, settings, out)
        settings.check_processes(processes.count)
        checkpoint, holds = stack.enter_context(opened_base(workspace, base))
        scratch = stack.enter_context(temporary(workspace.home.merged, holds, prefix="training-"))
        target = scratch / "expert" if out is None else Path(out).absolute()
        document, losses, tokens = _trained(
            workspace, checkpoint, TrainingText(files, public), settings, target, holds, processes
        )
        if out is not None:
            return TrainedExpert(document, losses, tokens, out=target)
        request = RegistrationRequest(
            name,
            target,
            data=files,
            settings=PassSettings(device=settings.device),
            annotations=annotations or Annotations(),
            keep_calibration=keep_calibration,
            allow_unrelated=True,  # it comes from a base model, registered or not
        )
        with open_candidate(workspace, request) as candidate:
            registration = register_expert(workspace, candidate)
        return TrainedExpert(document, losses, tokens, registration=registration)


def _check(
    workspace: Workspace,
    name: str,
    files: Sequence[Path],
    public: Sequence[Path],
    settings: ExpertTraining,
    out: PathLike | None,
) -> None:
    """Check what a training is given (errors as `train_expert`)."""
    check_name(name)
    if not files:
        raise InvalidInputError("there is nothing to train on", "give --data FILE, or several")
    if public and not settings.coordinate:
        raise InvalidInputError(
            "public text is what router rows begin with, and an expert without --coordinate has none",
            "add --coordinate, or drop --public-data",
        )
    Corpus([*files, *public], None)  # refuses what is no file before a weight is read
    if importlib.util.find_spec("accelerate") is None:
        raise StorageError("training needs accelerate", "run: pip install 'expert-registry[train]'")
    if out is None:
        workspace.check_owner()
        check_name_is_free(workspace.catalog, name, "expert")
    else:
        check_output(Path(out).absolute(), replace=None)


def _trained(
    workspace: Workspace,
    checkpoint: Checkpoint,
    text: TrainingText,
    settings: ExpertTraining,
    target: Path,
    holds: Sequence[str],
    processes: Processes,
) -> tuple[dict[str, Any], Losses, int]:
    """Write the trained checkpoint to `target`, and return its document, losses, and number of held-out tokens."""
    progress, home = workspace.progress, workspace.home
    settings = replace(settings, seq_len=shortened(settings.seq_len, checkpoint.folder, progress))
    device = device_name(settings.device)
    announce(
        progress,
        settings.trained_part(checkpoint.label),
        trained_weights(checkpoint, settings),
        steps=settings.steps,
        tokens=settings.steps * settings.batch_size * settings.accumulate * settings.seq_len,
        device=device,
        processes=processes.count,
    )
    windows, public = _windows(checkpoint, text, settings, workspace)
    dtype = ("bfloat16" if is_fast("bfloat16", device) else "float32") if settings.dtype == AUTO else settings.dtype
    hashed = hash_checkpoint(checkpoint, progress)
    inputs = settings.document(device, dtype, processes.count) | {"data": windows.all.digest, "base": hashed.weights}
    if public is not None:
        inputs |= {"public": public.digest}
    with ExitStack() as stack:
        state_path = stack.enter_context(resumable(home.partial, json_digest(["train-expert", inputs]), holds))
        scratch = stack.enter_context(temporary(home.merged, holds, prefix="trainer-"))
        job = Job("expert", checkpoint.folder, settings, device, dtype, windows, public)
        job.send(processes)
        trainable, losses = run_training(job, checkpoint, processes, state_path, scratch, progress)
        document = _document(inputs, losses)
        with exclusive(home.output_lock(target), f"training into {target}"):
            _write(target, trainable, hashed, document, workspace)
    return document, losses, int((windows.all.lengths[windows.held_out] - 1).sum())


def _write(
    target: Path, trainable: Trainable, hashed: HashedCheckpoint, document: Mapping[str, Any], workspace: Workspace
) -> None:
    streams = list(trainable.streams(hashed))
    nbytes = sum(stream.nbytes for stream in streams)
    with fresh_folder(target, replace=None, nbytes=nbytes) as folder:
        with workspace.progress("writing", nbytes, "B") as advance:
            write_weights(folder, streams, advance)
        files = {name: data for name, data in hashed.files.items() if name not in OWN_FILES}
        files[EXPERT_TRAINING] = json.dumps(document, indent=2).encode()
        if (rows := trainable.rows(hashed)) is not None:
            files[ROUTER_FILE] = pack_rows(rows)
        write_files(folder, files)


def _windows(
    checkpoint: Checkpoint, text: TrainingText, settings: ExpertTraining, workspace: Workspace
) -> tuple[Windows, Calibration | None]:
    """Return the windows to train on, and those of public text if there is any."""
    tokenizer = load_tokenizer(checkpoint.folder)
    count = settings.steps * settings.batch_size * settings.accumulate + HELD_OUT

    def windows_of(files: Sequence[PathLike], count: int) -> Calibration:
        size, corpus = settings.seq_len, Corpus([Path(file) for file in files], tokenizer)
        found = random_places(corpus, tokenizer, tokens=count * size, seq_len=size, seed=settings.seed)
        check_vocabulary(found, checkpoint.architecture.vocab_size, found.label)
        return found

    calibration = windows_of(text.own, count)
    public = windows_of(text.public, INITIAL) if text.public else None
    windows = make_windows([calibration], settings.seq_len, settings.seed)
    passes = count / max(1, len(windows.training))
    if passes >= 2:
        remark(
            workspace.progress, f"{calibration.label} is read {passes:.1f} times: it has fewer tokens than asked for"
        )
    return windows, public


def _document(inputs: Mapping[str, Any], losses: Losses) -> dict[str, Any]:
    """Return the content of `expert_training.json`."""
    return {"format": 1, "training": dict(inputs)} | curve(losses)


@contextmanager
def opened_base(workspace: Workspace, base: PathLike) -> Iterator[tuple[Checkpoint, tuple[str, ...]]]:
    """Open a base model as a folder; yield it and the digests of the registered versions that it comes from.

    Raises:
        NotFoundError: there is no such base model.
        CheckpointError: it is not a checkpoint of a known family.
    """
    version = base_version(workspace.catalog, base)
    if version is None:
        with open_checkpoint(base, workspace.home.merged, progress=workspace.progress) as checkpoint:
            yield checkpoint, ()
        return
    holds = StoredWeights(workspace, version).registered_as
    with temporary(workspace.home.merged, holds, prefix="training-") as scratch, workspace.reading(version):
        folder = scratch / "base"
        write_dense([load_member(workspace, version)], folder, workspace.progress)
        yield Checkpoint(folder, label=version.ref, remote_code=True), holds
