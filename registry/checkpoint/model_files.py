"""The small files of a checkpoint, none of which is trusted."""

import re
from pathlib import Path
from typing import Any

from registry.errors import CheckpointError
from registry.io.limits import JSON_BYTES, JSON_VALUES, SMALL_BYTES, TOKENIZER_BYTES, TOKENIZER_VALUES
from registry.io.strict_json import json_object

_SNAPSHOT = re.compile(r"models--[^/]+/snapshots/[0-9a-f]{40}")
_GENUINE = "name a genuine checkpoint"

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


def own_file(folder: Path, name: str) -> Path | None:
    """Return a regular file of a checkpoint's folder; None where there is none of that name.

    A symbolic link may lead to another file of the folder, and from a snapshot of the Hub's cache to its blobs, where
    the cache keeps every file. One that leads elsewhere could bring any file of this machine into a model.

    Raises:
        CheckpointError: it is a symbolic link out of the folder.
    """
    path = folder / name
    if not path.is_file():
        return None
    if path.is_symlink():
        place, target = folder.resolve(), path.resolve()
        if not target.is_relative_to(place) and not (
            _SNAPSHOT.fullmatch("/".join(place.parts[-3:])) and target.is_relative_to(place.parent.parent / "blobs")
        ):
            raise CheckpointError(
                f"{path} is a symbolic link out of the folder, to {target}",
                "put the file itself there, if you trust it: cp --remove-destination",
            )
    return path


def is_plain(name: str) -> bool:
    """Tell whether `name` can only be that of a file in the folder where it is looked for."""
    return Path(name).name == name and name.isprintable() and len(name.encode()) <= 255 and name not in ("", ".", "..")


def read_small(path: Path, limit: int) -> bytes:
    """Return a regular file of at most `limit` bytes.

    Raises:
        CheckpointError: it is larger, or a device or pipe.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is no regular file", _GENUINE)
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise CheckpointError(f"{path} has more than {limit:,} bytes", _GENUINE)
    return data


def read_json(path: Path, *, values: int = JSON_VALUES) -> dict[str, Any]:
    """Return a small file's JSON object.

    Raises:
        CheckpointError: it is too large, or no JSON object.
    """
    return json_object(read_small(path, JSON_BYTES), str(path), values=values)


def some(names: list[str]) -> str:
    """Return the first few of `names`, and how many more there are, with the verb: `a, b, c and 4 more are`."""
    return f"{few(names)} {'is' if len(names) == 1 else 'are'}"


def few(names: list[str]) -> str:
    """Return the first few of `names`, and how many more there are: `a, b, c and 4 more`."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


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
                        f"{folder}: its small files have {total:,} bytes, the limit is {SMALL_BYTES:,}", _GENUINE
                    )
                if name.endswith(".json") and name not in ("config.json", "tokenizer.json"):  # which are read anyway
                    json_object(data, str(path), values=TOKENIZER_VALUES)
    return found
