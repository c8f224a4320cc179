"""A folder whose text is to be routed, checked without torch."""

from collections.abc import Sequence
from pathlib import Path

from registry.checkpoint.model_files import read_config
from registry.errors import CheckpointError, InvalidInputError
from registry.families.table import FAMILIES
from registry.hosts.context import CONTEXT_LAYERS
from registry.hosts.remote_code import ENSEMBLE, SIMOE

_HINT = "name a mixture, an ensemble or a SIMoE: reg compose --experts A,B --out DIR"


def check_routed(folder: Path, layers: Sequence[int] = ()) -> None:
    """Check that a folder holds a model of several experts, and has some layers; the Hub is never asked.

    Layers that context routing adds do not count. An ensemble or a SIMoE, whose layers are not counted here, is not
    checked for them.

    Raises:
        CheckpointError: it is no folder, or holds no model.
        InvalidInputError: its model is dense, or a mixture without one of `layers`.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder", _HINT)
    config = read_config(folder)
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in FAMILIES:
        raise InvalidInputError(f"{folder} holds a dense model, of type {kind}, which routes no token", _HINT)
    depth, added = config.get("num_hidden_layers"), config.get(CONTEXT_LAYERS)
    if str(kind).startswith((ENSEMBLE, SIMOE)) or type(depth) is not int:
        return
    depth -= len(added) if isinstance(added, list) else 0
    if wrong := [layer for layer in layers if layer >= depth]:
        raise InvalidInputError(
            f"there is no layer {wrong[0]} in {folder}, which has {depth}", f"choose one from 0 to {depth - 1}"
        )
