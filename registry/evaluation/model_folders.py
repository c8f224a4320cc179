"""Check of the folders of an evaluation, without torch, so that a wrong name is reported at once."""

from collections.abc import Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path

from registry.checkpoint.model_files import read_config
from registry.errors import CheckpointError, RegError
from registry.names.reference import require_list
from registry.workspace import Workspace


def check_model_folders(workspace: Workspace, folders: Sequence[str | PathLike[str]]) -> None:
    """Check that folders hold models; for the name of a registered version, the hint is to export it.

    Raises:
        CheckpointError: a folder holds no model.
    """
    for folder in map(Path, require_list(folders, "folders")):
        try:
            read_config(folder)
        except CheckpointError as error:
            hint = error.hint
            if not folder.exists():
                hint = "name folders that hold a model: reg evaluate moe/ --data code=FILE"
                with suppress(RegError):
                    ref = workspace.resolve(str(folder)).ref
                    hint = f"{ref} is registered: run: reg export {ref} --out DIR, then evaluate DIR"
            raise CheckpointError(error.message, hint) from error
