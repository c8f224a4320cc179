"""Steps of all trainings from a base model: checks, the base model as a folder, checkpoints, their registration."""

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint, HashedCheckpoint, hash_checkpoint
from registry.checkpoint.annotations import Annotations
from registry.checkpoint.model_files import own_files
from registry.checkpoint.open import open_checkpoint
from registry.composition.stored import write_dense
from registry.errors import ConflictError, InvalidInputError, StorageError
from registry.families.sites import COUNTS
from registry.io.model_folder import fresh_folder, write_files, write_weights
from registry.io.safetensors_file import Stream, write_shard
from registry.io.work_dirs import resumable, temporary
from registry.member import load_member
from registry.names.reference import NAME_LIMIT, check_name, copy_name
from registry.names.resolve import check_name_is_free
from registry.progress import Progress, silent
from registry.registration import Registration, RegistrationRequest, register_checkpoint
from registry.statistics import file as statistics
from registry.statistics.collect import counted
from registry.statistics.forward_pass import computed_by
from registry.statistics.settings import PassSettings
from registry.training.launcher import Processes, check_alone
from registry.training.loop import Losses
from registry.training.settings import announce
from registry.training.training_paths import base_version
from registry.training.weight_trainer import WeightTrainer
from registry.workspace import PathLike, Workspace
from store.arrays import Block
from store.digest import json_digest
from store.lock import exclusive


@dataclass(frozen=True)
class TrainedFromBase:
    """The result of a training from a base model.

    `document` is the content of `expert_training.json`; the losses on held-out text are means over `tokens`.
    """

    document: dict[str, Any]
    losses: Losses
    tokens: int


def check_joint(
    workspace: Workspace, name: str, experts: int, kind: str, called: str, annotations: Annotations | None
) -> None:
    """Check that experts NAME-1 to NAME-n can be trained together, here and now, and registered.

    `kind` is the key of what versions of such a training store of it, `called` its name in messages.

    Raises:
        InvalidInputError: a name is not valid, or a launcher started several processes.
        ConflictError: a name is a base model's, an active version of it comes from elsewhere, or its alias is
            protected.
        StorageError: a library is not installed.
    """
    check_alone(f"{called} trains")
    workspace.check_owner()
    check_libraries()
    last = copy_name(check_name(name), experts, experts)
    if len(last) > NAME_LIMIT:
        raise InvalidInputError(
            f"experts of {name[:20]}… would have names of more than {NAME_LIMIT} characters", "choose a shorter name"
        )
    for number in range(1, experts + 1):
        check_name_is_free(workspace.catalog, own := copy_name(name, number, experts), "expert")
        workspace.catalog.check_alias(own, annotations.alias if annotations else None)
        for version in workspace.catalog.versions(own):
            if version.state == "active" and kind not in (version.content or {}):
                raise ConflictError(
                    f"{version.ref} is registered, and it does not come from reg train-{kind}",
                    f"choose another name: its experts are registered as NAME-1 to NAME-{experts}",
                )


def check_libraries() -> None:
    """Raise StorageError if what training needs is not installed."""
    if importlib.util.find_spec("accelerate") is None:
        raise StorageError("training needs accelerate", "run: pip install 'expert-registry[train]'")


@contextmanager
def shared_base(
    workspace: Workspace, base: PathLike, processes: Processes
) -> Iterator[tuple[Checkpoint, tuple[str, ...]]]:
    """Open a base model in the main process, whose folder the others open too (yields and errors as `opened_base`)."""
    if not processes.is_main:
        folder, label = processes.of_main(None)
        yield Checkpoint(Path(folder), label=label, remote_code=True), ()
        return
    with opened_base(workspace, base) as (checkpoint, holds):
        processes.of_main([str(checkpoint.folder), checkpoint.label])
        yield checkpoint, holds


@contextmanager
def opened_base(workspace: Workspace, base: PathLike) -> Iterator[tuple[Checkpoint, tuple[str, ...]]]:
    """Open a base model as a folder; yield it and the digests of the registered versions that it comes from.

    (NotFoundError: there is no such base model; CheckpointError: it is not a checkpoint of a known family.)
    """
    version = base_version(workspace.catalog, base)
    if version is None:
        merged = workspace.home.merged
        with open_checkpoint(base, merged, remote_code=True, progress=workspace.progress) as checkpoint:
            yield checkpoint, ()
        return
    holds = (version.digest,)
    with temporary(workspace.home.merged, holds, prefix="training-") as scratch, workspace.reading(version):
        folder = scratch / "base"
        write_dense([load_member(workspace, version)], folder, workspace.progress)
        yield Checkpoint(folder, label=version.ref, remote_code=True), holds


@contextmanager
def joint_training(
    workspace: Workspace,
    kind: str,
    name: str,
    trainer: WeightTrainer,
    inputs: Mapping[str, Any],
    holds: Sequence[str],
    what: str,
) -> Iterator[Losses]:
    """Train experts that share weights; yield the losses. The saved state is deleted when the context ends well.

    `kind` is as in `check_joint`, `inputs` everything that the result depends on, `holds` the digests of the registered
    versions that it begins from, and `what` trains, in words.
    """
    home = workspace.home
    count = sum(part.numel() for part in trainer.parts if part.requires_grad)
    announce(workspace.progress, what, count, trainer.settings, inputs["device"])
    with (
        exclusive(home.output_lock(home.path / f"{kind} {name}"), f"training {name}"),
        resumable(home.partial, json_digest([f"train-{kind}", name, inputs]), holds) as state_path,
    ):
        yield trainer.train(state_path, workspace.progress)


def write_checkpoint(
    target: Path,
    hashed: HashedCheckpoint,
    streams: Sequence[Stream],
    files: Mapping[str, bytes],
    text: Calibration | None = None,
    arrays: Mapping[str, Sequence[Stream]] | None = None,
    progress: Progress = silent,
) -> None:
    """Write a trained checkpoint to an absent or empty folder, which appears whole or not at all.

    Args:
        hashed: the base model, whose files but weights it has too.
        files: name → content of its own files; `arrays` has the tensors of further safetensors files.
        text: the training text, to write how often it has each token, which is all that combining experts by
            coefficients needs; None to write nothing of it.
    """
    arrays, nbytes = arrays or {}, sum(stream.nbytes for stream in streams)
    more = sum(stream.nbytes for own in arrays.values() for stream in own)
    with fresh_folder(target, replace=None, nbytes=nbytes + more) as folder:
        with progress("writing", nbytes, "B") as advance:
            write_weights(folder, streams, advance)
        for name, streams in arrays.items():
            write_shard(folder / name, streams)
        write_files(
            folder, {name: data for name, data in hashed.files.items() if name not in own_files()} | dict(files)
        )
        if text is not None:
            weights = hash_checkpoint(Checkpoint(folder, remote_code=True), silent).weights
            computed = computed_by(hashed.checkpoint, PassSettings(sites=COUNTS))
            statistics.save(folder / statistics.FILE_NAME, counted(weights, text, hashed.checkpoint, computed))


def streams_like(
    checkpoint: Checkpoint, names: Iterable[str], blocks: Callable[[str], Iterable[Block]]
) -> list[Stream]:
    """Return tensors of a base model's names, dtypes and shapes, whose values `blocks` returns by their names."""
    return [Stream(name, checkpoint.dtype_of(name), checkpoint.shapes[name], partial(blocks, name)) for name in names]


def register_trained(
    workspace: Workspace,
    name: str,
    annotations: Annotations | None,
    hashed: HashedCheckpoint,
    streams: Sequence[Stream],
    files: Mapping[str, bytes],
    text: Calibration | None = None,
    arrays: Mapping[str, Sequence[Stream]] | None = None,
) -> Registration:
    """Register a trained checkpoint as an expert, or a base model without `text` (arguments as `write_checkpoint`)."""
    with temporary(workspace.home.merged, prefix="training-") as scratch:
        write_checkpoint(scratch / "model", hashed, streams, files, text, arrays)
        request = RegistrationRequest(
            name,
            scratch / "model",
            "base" if text is None else "expert",
            annotations=annotations or Annotations(),
            allow_unrelated=True,  # it comes from a base model, registered or not
            remote_code=True,
        )
        return register_checkpoint(workspace, request)
