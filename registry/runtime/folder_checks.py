"""Checks of a model folder by its `config.json`, which may come from anywhere, before torch or transformers read it."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from registry.checkpoint.model_files import read_config
from registry.errors import CheckpointError, InvalidInputError
from registry.families import FAMILIES
from registry.hosts.architecture import SIZES
from registry.hosts.context import CONTEXT_LAYERS
from registry.io.safetensors_file import read_header
from registry.io.untrusted import COUNT, list_of, some_fields
from registry.runtime.sequence_hosts import HINT, sequence_host

_ROUTED_HINT = "name a composed folder whose experts stay apart: reg compose --experts A,B --out DIR"
_LAYERS = "num_hidden_layers"
_SIZES = tuple(name for name in SIZES if name != "max_position_embeddings")


def check_members(folder: Path, config: Mapping[str, Any]) -> None:
    """Check the `config.json` of a folder that has a `SequenceHost`, and this program's own modelling file.

    (CheckpointError: a key is missing, of another kind, contradicts others, or is a size beyond those of the tensors.)
    """
    where = str(folder / "config.json")
    host = sequence_host(config["model_type"])
    assert host is not None
    check_stored_sizes(folder, [config], where)
    host.check(config, where)
    check_stored_sizes(folder, config.get("member_configs", ()), where)


def added_layers(config: Mapping[str, Any], where: str) -> list[int]:
    """Return the numbers of the layers that context routing added (CheckpointError: they are no such numbers)."""
    own = some_fields(config, {CONTEXT_LAYERS: list_of(COUNT)}, where, hint=HINT, optional=(CONTEXT_LAYERS,))
    return list(own.get(CONTEXT_LAYERS, ()))


def check_stored_sizes(folder: Path, configs: Iterable[Mapping[str, Any]], where: str) -> None:
    """Raise CheckpointError if a size in a folder's configurations is beyond what its tensors can have.

    Making a model takes time for each layer and memory for each width, whatever is stored. The configurations are
    untrusted; `where` is their file in messages.
    """
    shapes = [entry.shape for path in folder.glob("*.safetensors") for entry in read_header(path).tensors.values()]
    if not shapes:
        return  # what is missing is said where weights are read
    widest = max((size for shape in shapes for size in shape), default=0)
    for config in configs:
        for name in _SIZES:
            size, most = config.get(name), len(shapes) if name == _LAYERS else widest
            if isinstance(size, int | float) and not size <= most:
                held = f"{most:,} tensors" if name == _LAYERS else f"tensors of at most {most:,} rows or columns"
                raise CheckpointError(f"{where}: {name} is {size}, and the folder has {held}", HINT)


def check_routed(folder: Path, layers: Sequence[int] = ()) -> None:
    """Check that a folder holds a model of several experts, and has some layers; the Hub is never asked.

    Layers that context routing adds do not count. A folder that weighs its members alike in all layers is not checked
    for them (CheckpointError: it holds no model; InvalidInputError: a dense one, or a mixture without one of `layers`).
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder", _ROUTED_HINT)
    config = read_config(folder)
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in FAMILIES:
        raise InvalidInputError(f"{folder} holds a dense model, of type {kind}, which routes no token", _ROUTED_HINT)
    depth, added = config.get("num_hidden_layers"), config.get(CONTEXT_LAYERS)
    if sequence_host(kind) is not None or type(depth) is not int:
        return
    depth -= len(added) if isinstance(added, list) else 0
    if wrong := [layer for layer in layers if layer >= depth]:
        raise InvalidInputError(
            f"there is no layer {wrong[0]} in {folder}, which has {depth}", f"choose one from 0 to {depth - 1}"
        )
