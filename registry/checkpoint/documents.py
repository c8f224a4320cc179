"""The small files of a checkpoint, none of which is trusted."""

import json
from pathlib import Path
from typing import Any

from registry.errors import CheckpointError

CONFIG_BYTES = 16 * 2**20
"""More than any genuine config.json has."""


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
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(
            f"{folder} is no checkpoint: it has no config.json", "name the folder that save_pretrained wrote"
        )
    return read_json(path)


def read_json(path: Path) -> dict[str, Any]:
    """Return a small file's JSON object.

    Raises:
        CheckpointError: it is too large, or no JSON object.
    """
    if path.stat().st_size > CONFIG_BYTES:
        raise CheckpointError(f"{path} has more than {CONFIG_BYTES:,} bytes", "name a genuine checkpoint")
    return json_object(path.read_bytes(), str(path))


def json_object(data: bytes, where: str) -> dict[str, Any]:
    """Return the JSON object in `data`.

    Raises:
        CheckpointError: it is none; the message says `where`.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is not JSON: {error}", "copy the file again") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{where} is not a JSON object", "copy the file again")
    return document


def some(names: list[str]) -> str:
    """Return the first few of `names`, and how many more there are, with the verb: `a, b, c and 4 more are`."""
    return f"{few(names)} {'is' if len(names) == 1 else 'are'}"


def few(names: list[str]) -> str:
    """Return the first few of `names`, and how many more there are: `a, b, c and 4 more`."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def read_files(folder: Path) -> dict[str, bytes]:
    """Return config.json, the tokenizer's files and generation_config.json of a model folder, as they are, by name."""
    names = [name for name in ("config.json", *COPIED_FILES) if (folder / name).is_file()]
    return {name: data for name in names if (data := (folder / name).read_bytes())}
