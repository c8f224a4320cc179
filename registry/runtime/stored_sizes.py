"""Checks of the sizes in an untrusted `config.json` against the tensors beside it, before a model of them is made."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from registry.errors import CheckpointError
from registry.io.safetensors_file import read_header

_LAYERS = "num_hidden_layers"
_WIDTHS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)
_HINT = "compose it again, or copy the folder again"


def check_stored_sizes(folder: Path, configs: Iterable[Mapping[str, Any]], where: str) -> None:
    """Check that no size in a folder's configurations is beyond what its tensors can have.

    Making a model takes time for each layer and memory for each width, whatever is stored.

    Args:
        folder: the model's folder.
        configs: the configurations of all models in it, untrusted.
        where: the file's name in messages.

    Raises:
        CheckpointError: a number of layers is beyond that of the tensors, or a width beyond all of theirs.
    """
    shapes = [entry.shape for path in folder.glob("*.safetensors") for entry in read_header(path).tensors.values()]
    if not shapes:
        return  # what is missing is said where weights are read
    widest = max((size for shape in shapes for size in shape), default=0)
    for config in configs:
        for name in (_LAYERS, *_WIDTHS):
            size, most = config.get(name), len(shapes) if name == _LAYERS else widest
            if isinstance(size, int | float) and not size <= most:
                held = f"{most:,} tensors" if name == _LAYERS else f"tensors of at most {most:,} rows or columns"
                raise CheckpointError(f"{where}: {name} is {size}, and the folder has {held}", _HINT)
