"""The small files of a checkpoint, none of which is trusted."""

from pathlib import Path
from typing import Any

from registry.errors import CheckpointError
from registry.io.files import GENUINE, own_file, read_json, read_small
from registry.io.limits import JSON_BYTES, SMALL_BYTES, TOKENIZER_BYTES, TOKENIZER_VALUES
from registry.io.strict_json import json_object

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
"""What a composed folder takes over from its members beside the weights."""


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config.json of a checkpoint folder.

    Raises:
        CheckpointError: there is no such folder or file, or it is no JSON object.
    """
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder", "name a local Hugging Face checkpoint folder, or hf://ORG/NAME[@REVISION]"
        )
    path = own_file(folder, "config.json")
    if path is None:
        raise CheckpointError(
            f"{folder} is no checkpoint: it has no config.json", "name the folder that save_pretrained wrote"
        )
    return read_json(path)


def read_files(folder: Path) -> dict[str, bytes]:
    """Return config.json, the tokenizer's files and generation_config.json of a model folder, as they are, by name.

    Raises:
        CheckpointError: one is too large, no JSON though its name says so, or a symbolic link out of the folder.
    """
    found = {}
    for name in ("config.json", *COPIED_FILES):
        if (path := own_file(folder, name)) is not None:
            data = read_small(path, TOKENIZER_BYTES if name in TOKENIZER_FILES else JSON_BYTES)
            if data:
                found[name] = data
                if (total := sum(map(len, found.values()))) > SMALL_BYTES:
                    raise CheckpointError(
                        f"{folder}: its small files have {total:,} bytes, the limit is {SMALL_BYTES:,}", GENUINE
                    )
                if name.endswith(".json") and name not in ("config.json", "tokenizer.json"):  # which are read anyway
                    json_object(data, str(path), values=TOKENIZER_VALUES)
    return found
