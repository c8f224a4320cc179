"""Checks of what a training or a choice of proxy text is given, without torch."""

import os
from collections.abc import Sequence
from pathlib import Path

from registry.calibration.corpus import Corpus
from registry.errors import CalibrationError, InvalidInputError, NotFoundError
from registry.io.model_folder import check_apart, check_output, composed_of
from registry.names.reference import require_list
from registry.names.resolve import base_model, resolve
from registry.names.suggest import suggest
from registry.workspace import PathLike, Workspace
from store.catalog import Catalog, VersionRecord

_SHOWN = 8
"""Members' names in an error, at most."""


def check_paths(folder: Path, out: Path, data: Sequence[PathLike], *, replace: bool) -> None:
    """Check the output and the text of a training, without torch, before a file of the folder is read in full.

    Text is files, or members whose calibration tokens were kept. With `replace`, `out` may be an earlier composition
    (OutputError: it cannot be written to; InvalidInputError: there is no text; CalibrationError: it is neither).
    """
    check_apart(out, folder, "the parent is never overwritten")
    check_output(out, replace=replace)
    if not (sources := require_list(data, "data")):
        raise InvalidInputError("there is nothing to train on", "give --data FILE, or several")
    members = composed_of(folder)
    for source in sources:
        name = str(source).partition("@")[0]
        if Path(source).is_file():
            Corpus([Path(source)], None)
        elif members and name not in members:
            shown = ", ".join([*members][:_SHOWN]) + (", …" if len(members) > _SHOWN else "")
            raise CalibrationError(
                f"{source} is not a file, and {folder.name} has no member of that name{suggest(name, members)}",
                f"name a file of text, or a member whose calibration tokens were kept: {shown}",
            )


def base_version(catalog: Catalog, base: PathLike) -> VersionRecord | None:
    """Return the registered version to begin a training from; None for a folder or a Hub repository that exists."""
    text = os.fspath(base)
    try:
        return resolve(catalog, text)
    except (NotFoundError, InvalidInputError) as error:
        if Path(base).is_dir() or text.startswith("hf://"):
            return None
        if text.partition("@")[0] in catalog.names():
            raise
        raise NotFoundError(
            f"there is no base model {text!r}: no version of that name is registered, and no such folder exists",
            "register one: reg add-base NAME CKPT; or give --base a folder, or hf://ORG/NAME",
        ) from error


def check_proxy(workspace: Workspace, experts: Sequence[str], out: PathLike, *, base: str | None) -> None:
    """Check the experts, the base model and the output of a choice of proxy text."""
    check_output(Path(out).absolute(), replace=None)
    for ref in require_list(experts, "experts"):
        workspace.resolve(ref)
    base_model(workspace.catalog, base)
