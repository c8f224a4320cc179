"""Files of a checkpoint's folder, read as untrusted input: the small ones, and weights block by block."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from registry.checkpoint.joint_training import joint_trainings
from registry.errors import CheckpointError
from registry.io.display import some
from registry.io.dtypes import NAMES
from registry.io.limits import JSON_BYTES, SMALL_BYTES, TOKENIZER_BYTES, TOKENIZER_VALUES
from registry.io.model_folder import INDEX
from registry.io.safetensors_file import Entry, read_header
from registry.io.torch_blocks import to_block, torch_dtype
from registry.io.untrusted import GENUINE, is_plain, json_object, own_file, read_json, read_small
from registry.names.suggest import suggest_path
from store.arrays import CARRIERS, ArraySource, Block, rows_per_block

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

SINGLE = "model.safetensors"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
"""Names of files that run code when they are opened, and so are never read."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
COPIED_FILES = (*TOKENIZER_FILES, "generation_config.json")  # files that a composed folder copies from its members
EXPERT_TRAINING = "expert_training.json"  # the file in which an expert that was trained here says how
ROUTER_FILE = "expert_router.safetensors"
"""The router rows of an expert that was trained beside a public expert (`trained_files.py`)."""


def own_files() -> tuple[str, ...]:
    """Return the files of a version that no composition, and no expert that begins from it, takes over."""
    return (EXPERT_TRAINING, ROUTER_FILE, *(name for one in joint_trainings() for name in (one.document, *one.files)))


def check_checkpoint(checkpoint: str | os.PathLike[str]) -> None:
    """Raise CheckpointError unless a checkpoint is a folder, or a Hub repository, which alone is looked up there."""
    if not os.fspath(checkpoint).startswith("hf://"):
        _check_folder(Path(checkpoint))


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder{suggest_path(folder, lambda entry: entry.is_dir())}",
            "name a local Hugging Face checkpoint folder, or hf://ORG/NAME[@REVISION]",
        )


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config.json of a checkpoint folder (CheckpointError: there is none, or it is no JSON object)."""
    _check_folder(folder)
    path = own_file(folder, "config.json")
    if path is None:
        has_adapter = (folder / "adapter_model.safetensors").is_file()
        lacking = "adapter_config.json" if has_adapter else "config.json"
        raise CheckpointError(
            f"{folder} is not a checkpoint: it has no {lacking}", "name the folder that save_pretrained wrote"
        )
    return read_json(path)


def read_files(folder: Path) -> dict[str, bytes]:
    """Return config.json, the tokenizer's files, generation_config.json and `own_files`, byte for byte, by name.

    (CheckpointError: a file is too large, a `.json` file is not JSON, or a symbolic link leads out of the folder.)
    """
    files = {}
    for name in ("config.json", *COPIED_FILES, *own_files()):
        if (path := own_file(folder, name)) is not None:
            data = read_small(path, TOKENIZER_BYTES if name in TOKENIZER_FILES else JSON_BYTES)
            if data:
                files[name] = data
                if (total := sum(map(len, files.values()))) > SMALL_BYTES:
                    raise CheckpointError(
                        f"{folder}: its small files have {total:,} bytes, the limit is {SMALL_BYTES:,}", GENUINE
                    )
                if name.endswith(".json") and name not in ("config.json", "tokenizer.json"):  # parsed elsewhere
                    json_object(data, str(path), values=TOKENIZER_VALUES)
    return files


@dataclass(frozen=True)
class Stored(Entry):
    """A tensor in a file, from its header."""

    file: Path


def read_headers(files: list[Path]) -> dict[str, Stored]:
    """Return the tensors of safetensors files by name (CheckpointError: one is no such file, or a name comes twice)."""
    tensors: dict[str, Stored] = {}
    for path in files:
        for name, entry in read_header(path).tensors.items():
            if name in tensors:
                raise CheckpointError(
                    f"tensor {name} is in {tensors[name].file.name} and in {path}", "save the checkpoint again, whole"
                )
            tensors[name] = Stored(**vars(entry), file=path)
    return tensors


def empty_tensors(label: str, names: Sequence[str]) -> CheckpointError:
    """Return the error of tensors without values, which DeepSpeed leaves where one process holds a part of each."""
    return CheckpointError(
        f"{label}: {some(list(names))} empty: it was saved under DeepSpeed ZeRO-3 without gathering its weights",
        "save it with stage3_gather_16bit_weights_on_model_save, or run the zero_to_fp32.py beside its checkpoint",
    )


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint folder (CheckpointError: there is none, or one is missing)."""
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
    """Return some rows of a tensor in its carrier dtype, reading nothing else (CheckpointError: the file cannot be)."""
    import numpy as np

    dtype = np.dtype(CARRIERS[NAMES[stored.dtype]][0])
    try:
        data = np.memmap(stored.file, dtype=dtype, mode="r", offset=stored.begin, shape=stored.shape)
        return np.array(data[rows])
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{stored.file}: {error}", "copy the file again") from error


def stored_rows(stored: Stored) -> Iterator[tuple[int, "torch.Tensor"]]:
    """Yield first row and values of a tensor, some rows at a time, read and not mapped: such pages count as memory.

    (CheckpointError: the file cannot be read.)
    """
    import torch

    if not math.prod(stored.shape):
        return
    shape, dtype = stored.shape or (1,), torch_dtype(NAMES[stored.dtype])
    width, step = math.prod(shape[1:]) * dtype.itemsize, rows_per_block(shape)
    try:
        with stored.file.open("rb") as file:
            file.seek(stored.begin)
            for start in range(0, shape[0], step):
                rows = min(step, shape[0] - start)
                data = bytearray(rows * width)
                if file.readinto(data) != len(data):
                    raise CheckpointError(f"{stored.file} ends early", "copy the file again")
                yield start, torch.frombuffer(data, dtype=dtype).view(rows, *shape[1:])
    except OSError as error:
        raise CheckpointError(f"{stored.file}: {error}", "copy the file again") from error


def weight_source(name: str, stored: Stored, label: str) -> ArraySource:
    """Return one tensor as blocks of rows; `label` is the checkpoint's in messages.

    (CheckpointError, while it is read: a weight is NaN or infinite, or the file cannot be read.)
    """

    def blocks() -> Iterator[Block]:
        for start, part in stored_rows(stored):
            least, most = part.aminmax()  # many times as fast as isfinite; both are NaN if any is
            if not (math.isfinite(least) and math.isfinite(most)):
                raise CheckpointError(
                    f"{label}: tensor {name} has NaN or infinite weights (rows {start} to {start + len(part) - 1})",
                    "register a checkpoint from before the training diverged",
                )
            yield to_block(part)

    return ArraySource(NAMES[stored.dtype], stored.shape, blocks)
