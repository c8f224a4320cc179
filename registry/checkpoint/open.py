"""Checkpoints opened by name: a folder, a Hub repository, or an adapter merged into its base model."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from registry.checkpoint import Checkpoint
from registry.checkpoint.adapted import AdaptedCheckpoint
from registry.checkpoint.adapter import Adapter, DenseWeights, Merged, copy_carried, is_adapter
from registry.checkpoint.annotations import is_signed, signature_of
from registry.checkpoint.hub_download import HubReference, fetch_repository, is_hub_reference
from registry.checkpoint.joint_training import joint_trainings
from registry.checkpoint.model_files import own_files
from registry.checkpoint.plain_folder import plain_folder, scratch_folder
from registry.checkpoint.renumbered import renumbered
from registry.checkpoint.version_files import VersionArrays
from registry.errors import CheckpointError, InvalidInputError, NotFoundError, RegError
from registry.io.display import some
from registry.progress import Progress, remark

PathLike = str | os.PathLike[str]
Registered = Callable[[str], DenseWeights | None]
"""Returns the weights of a registered model, or None if a reference does not match one."""

_OTHER_TOKENIZERS = ("tekken.json", "*.tiktoken", "*.spm", "tokenizer.model.v*", "additional_chat_templates")
"""Names of what other programs read of a tokenizer."""


@contextmanager
def open_checkpoint(
    checkpoint: PathLike,
    scratch: Path,
    *,
    base: PathLike | None = None,
    registered: Registered | None = None,
    remote_code: bool = False,
    like: tuple[str, Mapping[str, bytes]] | None = None,
    keep: Callable[[Checkpoint], VersionArrays | None] | None = None,
    progress: Progress,
) -> Iterator[Checkpoint]:
    """Open a checkpoint, and check all its headers.

    Args:
        checkpoint: a folder or `hf://ORG/NAME[@REVISION]`, of a model or of an adapter.
        scratch: the folder for merged models and copies, which are deleted afterwards.
        base: an adapter's base model, if its own configuration does not name it: a registered model's name, a folder
            or `hf://…` (InvalidInputError: the checkpoint is a whole one).
        remote_code: accept models that no native host carries (UnsupportedFamilyError without it, but for an adapter
            of a registered model, which is accepted as that was).
        like: a version, and its files: added tokens get the numbers that it has for them.
        keep: where an adapter of a registered model is to stay one (`AdaptedCheckpoint`), so that nothing is merged:
            returns the registered model that has the weights of a folder, or None.

    Raises:
        CheckpointError: the checkpoint cannot be registered.
        NotFoundError, StorageError: the Hub has no such repository or cannot be reached, or the disk is full.
    """

    def opened(folder: Path, label: str) -> Checkpoint:
        plain = stack.enter_context(plain_folder(folder, label, scratch, progress))
        return _opened(plain, label, remote_code, progress)

    folder, label = _local(checkpoint, progress)
    with ExitStack() as stack:
        if is_adapter(folder):
            adapter = Adapter.of_folder(folder, label)
            weights = _base_of(adapter, base, registered, opened, progress)
            if keep is not None and isinstance(weights, Checkpoint):
                weights = keep(weights) or weights
            if base is not None and adapter.settings.base_name not in (None, os.fspath(base)):
                other = f"its configuration names {adapter.settings.base_name}, which is not looked at"
                remark(progress, f"{label} is taken as an adapter of {base}, as asked; {other}")
            remote_code |= isinstance(weights, VersionArrays)
            holds = [weights.version.digest] if isinstance(weights, VersionArrays) else []
            merged, own = Merged(adapter, weights), scratch_folder(stack, scratch, holds, prefix="merged-")
            for note in adapter.notes:
                remark(progress, f"{label}: {note}")
            if keep is not None and like is None and isinstance(weights, VersionArrays) and not weights.is_adapter:
                found: Checkpoint = AdaptedCheckpoint(folder, merged, own, progress)
            else:
                if keep is not None:
                    remark(progress, f"{label} is merged into whole weights, as {_why_merged(weights, like)}")
                merged.write(own / "model", progress)
                copy_carried(folder, own / "model")
                found = Checkpoint(own / "model", label=label, remote_code=remote_code)
        else:
            found = opened(folder, label)
            if base is not None:
                raise InvalidInputError(
                    f"{label} is a whole checkpoint: only an adapter has a base model", "drop --base"
                )
        if like is not None:
            ref, files = like
            copy = stack.enter_context(renumbered(found, files, ref, scratch, progress))
            found = Checkpoint(copy, label=label, remote_code=remote_code)
        yield found


def _why_merged(weights: DenseWeights, like: object) -> str:
    """Return why an adapter does not stay one."""
    if like is not None:
        return "its tokens get other numbers"
    if isinstance(weights, VersionArrays):
        return "its base model is an adapter itself"
    return "its base model is not registered: to keep an adapter, reg add-base NAME CKPT first, then this again"


def _local(checkpoint: PathLike, progress: Progress) -> tuple[Path, str]:
    """Return folder and label of a checkpoint; `progress` receives that it is signed, or that one of the Hub is not."""
    text = os.fspath(checkpoint)
    is_remote = is_hub_reference(text)
    folder = fetch_repository(HubReference.parse(text)) if is_remote else Path(text)
    if is_remote or is_signed(folder):
        remark(progress, f"{text}: {signature_of(folder)}")
    return folder, text


def _opened(folder: Path, label: str, remote_code: bool, progress: Progress) -> Checkpoint:
    """Open a plain folder, with a remark on what is not used of it."""
    checkpoint = Checkpoint(folder, label=label, remote_code=remote_code)
    if "auto_map" in checkpoint.config:
        kind = checkpoint.family.class_name
        remark(progress, f"{label}: its own code (auto_map in config.json) is not run: it is read as {kind}")
    if files := sorted(path.name for path in folder.iterdir() if any(map(path.match, _OTHER_TOKENIZERS))):
        remark(progress, f"{label}: {some(files)} not taken over, as transformers does not read them")
    if buffers := list(checkpoint.unused):
        remark(progress, f"{label}: {some(buffers)} not used: buffers are computed from config.json")
    of_trainings = [one.arrays for one in joint_trainings()]
    known = {*checkpoint.weight_files, *own_files(), *of_trainings, "statistics.safetensors"}
    if others := sorted({path.name for path in folder.glob("*.safetensors")} - known):
        remark(progress, f"{label}: {some(others)} not read: no part of the model that config.json describes")
    return checkpoint


def _base_of(
    adapter: Adapter,
    base: PathLike | None,
    registered: Registered | None,
    opened: Callable[[Path, str], Checkpoint],
    progress: Progress,
) -> DenseWeights:
    names = "" if registered is None else "--base NAME[@V] of a registered one, "
    hint = f"name its base model: {names}--base FOLDER, or --base hf://ORG/NAME"
    if base is not None:
        text = os.fspath(base)
        weights = None if registered is None else registered(text)
        if weights is not None:
            return weights
        if not is_hub_reference(text) and not Path(text).is_dir():
            looked = "it is not" if registered is None else "neither registered nor"
            raise NotFoundError(f"there is no base model {text!r}: {looked} a folder", hint)
        return opened(*_local(text, progress))
    if adapter.settings.base_name is None:
        raise CheckpointError(f"{adapter.label} does not say which base model it belongs to", hint)
    if Path(adapter.settings.base_name).is_dir():
        return opened(Path(adapter.settings.base_name), adapter.settings.base_name)
    if adapter.settings.base_name.startswith(("/", ".", "~")):
        named = f"its configuration names the folder {adapter.settings.base_name} as its base model"
        raise CheckpointError(f"{adapter.label}: {named}, which is not here", hint)
    revision = f"@{adapter.settings.revision}" if adapter.settings.revision else ""
    try:
        folder, label = _local(f"hf://{adapter.settings.base_name}{revision}", progress)
    except RegError as error:
        raise CheckpointError(
            f"{adapter.label}: its base model {adapter.settings.base_name!r} cannot be fetched: {error.message}",
            f"{error.hint}; or {hint}" if error.hint else hint,
        ) from error
    return opened(folder, label)
