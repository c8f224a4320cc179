"""Changes of a checkpoint's folder, in which cases of tests are written."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Change = Callable[[Path], object]
Tensors = dict[str, torch.Tensor]


def config(file: str = "config.json", /, **changes: Any) -> Change:
    """Return a change of keys of config.json; `...` deletes one."""

    def change(folder: Path) -> None:
        document = json.loads((folder / file).read_text()) | changes
        (folder / file).write_text(json.dumps({key: value for key, value in document.items() if value is not ...}))

    return change


def weights(edit: Callable[[Tensors], object], file: str = "model.safetensors") -> Change:
    """Return a change of the tensors."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / file)
        edit(tensors)
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / file, metadata={"format": "pt"})

    return change


def renamed(rename: Callable[[str], str], file: str = "model.safetensors") -> Change:
    """Return a change of the tensors' names."""
    return weights(lambda t: [t.update({rename(name): t.pop(name)}) for name in list(t)], file)


def written(name: str, data: bytes) -> Change:
    """Return a change that writes a file."""
    return lambda folder: (folder / name).write_bytes(data)


def removed(name: str) -> Change:
    """Return a change that deletes a file."""
    return lambda folder: (folder / name).unlink()


ADAPTER = "adapter_model.safetensors"
adapter_config = partial(config, "adapter_config.json")
adapter_weights = partial(weights, file=ADAPTER)
