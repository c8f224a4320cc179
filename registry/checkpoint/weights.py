"""Weights in safetensors files: their headers, and the weights themselves block by block."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from registry.errors import CheckpointError
from registry.io.display import some
from registry.io.dtypes import NAMES
from registry.io.files import is_plain, own_file, read_json
from registry.io.safetensors_header import read_header
from registry.io.torch_blocks import to_block
from store.arrays import CARRIERS, ArraySource, Block, rows_per_block

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
"""Names of files that run code when they are opened, and so are never read."""

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, from its header: `dtype` in the header's spelling, `begin` in bytes of the file.

    Its `key` there is its name, unless a training program put something around that.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    key: str


def read_headers(files: list[Path]) -> dict[str, Stored]:
    """Return the location of every tensor in some safetensors files, by tensor name.

    Raises:
        CheckpointError: a file is not a safetensors file, or a tensor is in two of them.
    """
    tensors: dict[str, Stored] = {}
    for path in files:
        for name, entry in read_header(path).tensors.items():
            if name in tensors:
                raise CheckpointError(
                    f"tensor {name} is in {tensors[name].file.name} and in {path}", "save the checkpoint again, whole"
                )
            tensors[name] = Stored(path, entry.dtype, entry.shape, entry.begin, name)
    return tensors


def empty_tensors(label: str, names: Sequence[str]) -> CheckpointError:
    """Return the error of tensors without values, which DeepSpeed leaves where one process holds a part of each."""
    return CheckpointError(
        f"{label}: {some(list(names))} empty: it was saved under DeepSpeed ZeRO-3 without gathering its weights",
        "save it with stage3_gather_16bit_weights_on_model_save, or run the zero_to_fp32.py beside its checkpoint",
    )


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint folder.

    Raises:
        CheckpointError: the folder has no weights, files are missing, or the weights are in pickle files.
    """
    if (index := own_file(folder, INDEX)) is not None:
        listed = read_json(index).get("weight_map")
        names = sorted(set(map(str, listed.values()))) if isinstance(listed, dict) else []
        if outside := [name for name in names if not is_plain(name)]:
            raise CheckpointError(
                f"{index} names files outside the folder: {outside[0][:200]!r}", "use a genuine checkpoint"
            )
        if not names:
            raise CheckpointError(f"{index} lists no weights", "copy the file again")
        paths = {name: own_file(folder, name) for name in names}
        if SINGLE not in names and own_file(folder, SINGLE) is not None:
            raise CheckpointError(
                f"{folder} has two sets of weights: {SINGLE}, which transformers reads, and those that {INDEX} lists",
                "delete the one that is not the model's",
            )
        if absent := [name for name, path in paths.items() if path is None]:
            them = "it" if len(absent) == 1 else "them"
            raise CheckpointError(
                f"{folder}: {some(absent)} missing, though {index.name} lists {them}", f"copy {them} again"
            )
        return [path for path in paths.values() if path is not None]
    if (single := own_file(folder, SINGLE)) is not None:
        return [single]
    if any(path for pattern in PICKLES for path in folder.glob(pattern)):
        raise CheckpointError(
            f"{folder} has its weights in pickle files, which run code when they are opened and so are never read",
            "convert them where you trust them: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)",
        )
    raise CheckpointError(
        f"{folder} has no weights: neither {SINGLE} nor {INDEX}", "name the folder that save_pretrained wrote"
    )


def sample_weight(stored: Stored, rows: "npt.NDArray[np.int64]") -> Block:
    """Return some rows of a tensor in its carrier dtype; nothing else is read.

    Raises:
        CheckpointError: the file cannot be read.
    """
    import numpy as np

    dtype = np.dtype(CARRIERS[NAMES[stored.dtype]][0])
    try:
        data = np.memmap(stored.file, dtype=dtype, mode="r", offset=stored.begin, shape=stored.shape)
        return np.array(data[rows])
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{stored.file}: {error}", "copy the file again") from error


def weight_source(name: str, stored: Stored, label: str) -> ArraySource:
    """Return one tensor as blocks of rows.

    Args:
        name: the tensor.
        stored: its location; its dtype can be registered.
        label: the checkpoint's name in messages.

    Raises (while it is read):
        CheckpointError: a weight is NaN or infinite, or the file cannot be read.
    """

    def blocks() -> Iterator[Block]:
        from safetensors import SafetensorError, safe_open

        rows = rows_per_block(stored.shape)
        try:
            with safe_open(stored.file, framework="pt") as file:
                view = file.get_slice(stored.key)
                for start in range(0, stored.shape[0], rows):
                    part = view[start : start + rows]
                    least, most = part.aminmax()  # many times as fast as isfinite; both are NaN if any is
                    if not (math.isfinite(least) and math.isfinite(most)):
                        raise CheckpointError(
                            f"{label}: tensor {name} has NaN or infinite weights "
                            f"(rows {start} to {start + len(part) - 1})",
                            "register a checkpoint from before the training diverged",
                        )
                    yield to_block(part)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{stored.file}: {error}", "copy the file again") from error

    return ArraySource(NAMES[stored.dtype], stored.shape, blocks)
