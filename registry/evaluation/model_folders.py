"""Checks of the folders of an evaluation or a diagnosis, without torch, so that wrong input is reported at once."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from registry.calibration.corpus import check_files
from registry.checkpoint.hub_download import is_hub_reference
from registry.checkpoint.model_files import read_config
from registry.errors import CheckpointError, InvalidInputError, RegError
from registry.io.model_folder import MARKER
from registry.names.reference import require_list
from registry.workspace import PathLike, Workspace

MOST_COUNTS = 1024
"""Most numbers of experts per token that `all` stands for: the number of experts is read from an untrusted file."""


def check_model_folders(
    workspace: Workspace,
    folders: Sequence[PathLike],
    active_experts: Sequence[int] | Literal["all"] = (),
    *,
    text: Mapping[str, Sequence[PathLike]] | None = None,
    example: str = "reg evaluate moe/ --data code=FILE",
) -> tuple[int, ...] | Literal["all"]:
    """Check that folders hold models with so many experts, and return `active_experts`.

    Args:
        active_experts: the numbers of experts per token that each must have (InvalidInputError: one has fewer).
        text: domain → files (CalibrationError: one does not exist, or is of another form).
        example: the command that checks them, for hints.

    Raises CheckpointError if a folder holds no model; for the name of a registered version, the hint is to export it.
    """
    for folder in map(Path, require_list(folders, "folders")):
        try:
            read_config(folder)
        except CheckpointError as error:
            hint = error.hint
            if not folder.exists():
                hint = f"name folders that hold a model: {example}"
                with suppress(RegError):
                    ref = workspace.resolve(str(folder)).ref
                    hint = f"{ref} is registered: run: reg export {ref} --out DIR, then name DIR"
            raise CheckpointError(error.message, hint) from error
    if active_experts and not folders:
        raise InvalidInputError(
            "active experts need a folder, and no folder was named",
            "reg evaluate moe/ --active-experts all --data a=FILE",
        )
    counts: tuple[int, ...] | Literal["all"] = "all"
    if active_experts != "all":
        counts = tuple(require_list(active_experts, "active_experts"))
    for path in folders:
        active_experts_of(Path(path), counts)
    check_files(text or {})
    return counts


def check_examined(folder: PathLike, data: Mapping[str, Sequence[PathLike]]) -> None:
    """Check that a folder to examine, and the files of text to run it on, exist (CheckpointError, CalibrationError)."""
    if not Path(folder).is_dir():
        what = "is on the Hub, not a folder" if is_hub_reference(str(folder)) else "is not a folder"
        raise CheckpointError(f"{folder} {what}", "name a model's folder, such as one that reg compose wrote")
    check_files(data)


def decided_by_prompt(config: Mapping[str, Any]) -> bool:
    """Tell whether the whole prompt weighs the members, so that no token before its end has a probability."""
    return "routing" in config and config.get("routing_tokens") == 0


def check_perplexities(folders: Sequence[PathLike]) -> None:
    """Check that the models in all folders have a perplexity (InvalidInputError: the whole prompt decides in one)."""
    for folder in map(Path, folders):
        if decided_by_prompt(read_config(folder)):
            raise InvalidInputError(
                f"{folder} has no perplexity: its routing tokens are 0, so the whole prompt weighs its members, and "
                "the probability of a token would depend on that token and those after it",
                f"let the first tokens decide: reg compose --recipe {folder / MARKER} --routing-tokens 32 --out DIR",
            )


def active_experts_of(folder: Path, wanted: Sequence[int] | Literal["all"]) -> tuple[int, ...]:
    """Return the numbers of experts per token to score a mixture with, ascending; for `all` 1 up to its experts.

    (InvalidInputError: the model is no mixture, or has fewer experts.)
    """
    if not wanted:
        return ()
    config = read_config(folder)
    experts = config.get("num_local_experts", config.get("num_experts"))
    if not isinstance(experts, int) or experts < 1:
        raise InvalidInputError(
            f"{folder} has no experts to choose from: it is no mixture",
            "evaluate it without --active-experts, or name composed mixtures alone",
        )
    if wanted == "all":
        return tuple(range(1, min(experts, MOST_COUNTS) + 1))
    for count in wanted:
        if not 1 <= count <= experts:
            raise InvalidInputError(
                f"{count} active experts are asked for, {folder} has {experts}",
                f"give --active-experts from 1 to {experts}, or all",
            )
    return tuple(sorted(set(wanted)))
