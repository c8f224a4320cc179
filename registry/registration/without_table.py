"""Base models of families without a table here, and adapters of them: checked against their classes in transformers."""

import torch
from torch import nn

from registry.checkpoint import Checkpoint
from registry.checkpoint.adapted import AdaptedCheckpoint
from registry.errors import CheckpointError, InvalidInputError, first_line
from registry.families.sites import COUNTS
from registry.io.display import few
from registry.io.torch_blocks import torch_dtype
from registry.progress import Progress, remark
from registry.runtime.folder_checks import check_stored_sizes
from registry.runtime.loading import bare_model, unfilled_model
from registry.statistics.settings import PassSettings

NOTE = "its layers are not in the table of families: it is a base model of adapters, and has no other use here"
"""Remark on a whole model of such a family."""


def check_without_table(checkpoint: Checkpoint, settings: PassSettings, *, is_expert: bool, progress: Progress) -> None:
    """Check a checkpoint, if it is of a family whose layers are not known here; `is_expert` says what it is to become.

    Raises:
        CheckpointError: an expert is no adapter, or changes something else than linear layers of its class; or a base
            model's tensors are not those of its class.
        InvalidInputError: an expert would be registered with statistics of its layers.
    """
    label, family = checkpoint.label, checkpoint.family
    if family.has_table:
        return
    unknown = f"the layers of {family.model_type!r} models are not in the table of families"
    if not is_expert:
        _check_tensors(checkpoint, progress)
        return
    if not isinstance(checkpoint, AdaptedCheckpoint):
        raise CheckpointError(
            f"{label}: {unknown}, so that an expert of them is an adapter of a registered base model",
            "register the base model first: reg add-base NAME CKPT; then its adapters with --base NAME",
        )
    if settings.sites != COUNTS:
        raise InvalidInputError(f"{label}: {unknown}, so that only tokens can be counted", "add --sites counts")
    _check_changes(checkpoint)


def _check_tensors(checkpoint: Checkpoint, progress: Progress) -> None:
    label, name = checkpoint.label, checkpoint.family.class_name
    check_stored_sizes(checkpoint.folder, [checkpoint.config], f"{label}/config.json")
    tensors = {
        key: torch.empty(shape, dtype=torch_dtype(checkpoint.dtype_of(key)), device="meta")
        for key, shape in checkpoint.shapes.items()
    }
    try:
        info = unfilled_model(checkpoint.folder, tensors)
    except CheckpointError:
        raise
    except Exception as error:  # transformers raises many kinds
        problem = f"{label}: {name} does not take its tensors: {first_line(error)}"
        raise CheckpointError(problem, "save the checkpoint again, whole") from error
    if info is None:
        remark(progress, f"{label} is not compared with {name}: pip install accelerate, and it will be")
        return
    if wrong := [f"{kind.replace('_', ' ')} {few(sorted(map(str, keys)))}" for kind, keys in info.items() if keys]:
        raise CheckpointError(
            f"{label}: its tensors are not those of {name}: {'; '.join(wrong)}", "save the checkpoint again, whole"
        )


def _check_changes(checkpoint: AdaptedCheckpoint) -> None:
    model = bare_model(checkpoint.folder)
    head = model.get_output_embeddings() if model.config.tie_word_embeddings else None
    linear = {f"{name}.weight" for name, part in model.named_modules() if type(part) is nn.Linear and part is not head}
    merged = checkpoint.merged
    wrong = [name for name in merged.changes if name not in linear or not merged.is_low_rank(name)]
    if wrong:
        raise CheckpointError(
            f"{checkpoint.label} changes {few(wrong)}, and of {checkpoint.family.class_name} low-rank changes of "
            "linear layers alone are read",
            "train one whose target_modules are linear layers, without modules_to_save and biases",
        )
