"""Small untrusted files: regular, of bounded size, and not linked from outside their folder."""

import os
import re
from pathlib import Path
from typing import Any

from registry.errors import CheckpointError
from registry.io.limits import JSON_BYTES, JSON_VALUES
from registry.io.strict_json import json_object

GENUINE = "name a genuine checkpoint"
"""The hint of errors about files that no common program writes."""

_SNAPSHOT = re.compile(r"models--[^/]+/snapshots/[0-9a-f]{40}")


def own_file(folder: Path, name: str) -> Path | None:
    """Return the path of a regular file in a checkpoint's folder, or None if it has no such file.

    A symbolic link may lead to another file of the folder, and from a snapshot of the Hub's cache to its blobs, where
    the cache keeps every file. One that leads elsewhere could copy any file of this machine into a model.

    Raises:
        CheckpointError: the file is a symbolic link out of the folder.
    """
    path = folder / name
    if not path.is_file():
        return None
    if path.is_symlink():
        root, target = folder.resolve(), path.resolve()
        if not target.is_relative_to(root) and not (
            _SNAPSHOT.fullmatch("/".join(root.parts[-3:])) and target.is_relative_to(root.parent.parent / "blobs")
        ):
            raise CheckpointError(
                f"{path} is a symbolic link out of the folder, to {target}",
                "put the file itself there, if you trust it: cp --remove-destination",
            )
    return path


def is_folder(text: str) -> bool:
    """Tell whether a text, of any length and characters, is the path of a folder."""
    return os.path.isdir(text)  # noqa: PTH112  # Path.is_dir fails for what is too long to be a path


def is_plain(name: str) -> bool:
    """Tell whether `name` is a plain file name, which cannot lead out of its folder."""
    return Path(name).name == name and name.isprintable() and len(name.encode()) <= 255 and name not in ("", ".", "..")


def read_small(path: Path, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    Raises:
        CheckpointError: the file is larger, or a device or pipe.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is not a regular file", GENUINE)
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise CheckpointError(f"{path} has more than {limit:,} bytes", GENUINE)
    return data


def read_json(path: Path, *, values: int = JSON_VALUES) -> dict[str, Any]:
    """Return the JSON object in a small file.

    Raises:
        CheckpointError: the file is too large, or not a JSON object.
    """
    return json_object(read_small(path, JSON_BYTES), str(path), values=values)
