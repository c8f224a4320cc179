"""The input of an examination, checked without torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from registry.calibration.corpus import check_files
from registry.checkpoint.hub_download import is_hub_reference
from registry.errors import CheckpointError
from registry.workspace import PathLike


def check_examined(folder: PathLike, data: Mapping[str, Sequence[PathLike]]) -> None:
    """Check that a folder to examine, and the files of text to run it on, exist (CheckpointError, CalibrationError)."""
    if not Path(folder).is_dir():
        what = "is on the Hub, not a folder" if is_hub_reference(str(folder)) else "is not a folder"
        raise CheckpointError(f"{folder} {what}", "name a model's folder, such as one that reg compose wrote")
    check_files(data)
