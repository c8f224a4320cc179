"""A folder whose text is to be routed, checked without torch."""

from pathlib import Path

from registry.checkpoint.model_files import read_config
from registry.errors import CheckpointError, InvalidInputError
from registry.families.table import FAMILIES

_HINT = "name a mixture, an ensemble or a SIMoE: reg compose --experts A,B --out DIR"


def check_routed(folder: Path) -> None:
    """Check that a folder holds a model of several experts; the Hub is never asked.

    Raises:
        CheckpointError: it is no folder, or holds no model.
        InvalidInputError: its model is dense.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder", _HINT)
    kind = read_config(folder).get("model_type")
    if isinstance(kind, str) and kind in FAMILIES:
        raise InvalidInputError(f"{folder} holds a dense model, of type {kind}, which routes no token", _HINT)
