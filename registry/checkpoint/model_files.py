"""Small files of a checkpoint, read as untrusted input."""

import os
from pathlib import Path
from typing import Any

from registry.checkpoint.router_rows import ROUTER_FILE
from registry.checkpoint.simoe_files import SIMOE_FILE
from registry.checkpoint.soup_files import SOUP_FILE, SOUP_ROUTER
from registry.errors import CheckpointError
from registry.io.files import GENUINE, own_file, read_json, read_small
from registry.io.limits import JSON_BYTES, SMALL_BYTES, TOKENIZER_BYTES, TOKENIZER_VALUES
from registry.io.strict_json import json_object
from registry.names.suggest import suggest_path

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
COPIED_FILES = (*TOKENIZER_FILES, "generation_config.json")
"""Files that a composed folder copies from its members."""

EXPERT_TRAINING = "expert_training.json"
"""The file in which an expert that was trained here says how."""
OWN_FILES = (EXPERT_TRAINING, ROUTER_FILE, SOUP_FILE, SOUP_ROUTER, SIMOE_FILE)
"""Files of a version that no composition, and no expert that begins from it, takes over."""


def check_checkpoint(checkpoint: str | os.PathLike[str]) -> None:
    """Check that a checkpoint is a folder, or a repository of the Hub, which alone is looked up there.

    Raises:
        CheckpointError: it is neither.
    """
    if not os.fspath(checkpoint).startswith("hf://"):
        _check_folder(Path(checkpoint))


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder{suggest_path(folder, lambda entry: entry.is_dir())}",
            "name a local Hugging Face checkpoint folder, or hf://ORG/NAME[@REVISION]",
        )


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config.json of a checkpoint folder.

    Raises:
        CheckpointError: the folder or the file does not exist, or it is not a JSON object.
    """
    _check_folder(folder)
    path = own_file(folder, "config.json")
    if path is None:
        raise CheckpointError(
            f"{folder} is not a checkpoint: it has no config.json", "name the folder that save_pretrained wrote"
        )
    return read_json(path)


def read_files(folder: Path) -> dict[str, bytes]:
    """Return config.json, the tokenizer's files, generation_config.json and `OWN_FILES`, byte for byte, by name.

    Raises:
        CheckpointError: a file is too large, a `.json` file is not JSON, or a symbolic link leads out of the folder.
    """
    files = {}
    for name in ("config.json", *COPIED_FILES, *OWN_FILES):
        if (path := own_file(folder, name)) is not None:
            data = read_small(path, TOKENIZER_BYTES if name in TOKENIZER_FILES else JSON_BYTES)
            if data:
                files[name] = data
                if (total := sum(map(len, files.values()))) > SMALL_BYTES:
                    raise CheckpointError(
                        f"{folder}: its small files have {total:,} bytes, the limit is {SMALL_BYTES:,}", GENUINE
                    )
                if name.endswith(".json") and name not in (
                    "config.json",
                    "tokenizer.json",
                ):  # those are parsed elsewhere
                    json_object(data, str(path), values=TOKENIZER_VALUES)
    return files
