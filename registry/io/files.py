"""Reading small files that are not trusted: regular files of bounded size, and no link out of their folder."""

import re
from pathlib import Path
from typing import Any

from registry.errors import CheckpointError
from registry.io.limits import JSON_BYTES, JSON_VALUES
from registry.io.strict_json import json_object

GENUINE = "name a genuine checkpoint"
"""The hint of errors about files that no program of this field writes."""

_SNAPSHOT = re.compile(r"models--[^/]+/snapshots/[0-9a-f]{40}")


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
        raise CheckpointError(f"{path} is no regular file", GENUINE)
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise CheckpointError(f"{path} has more than {limit:,} bytes", GENUINE)
    return data


def read_json(path: Path, *, values: int = JSON_VALUES) -> dict[str, Any]:
    """Return a small file's JSON object.

    Raises:
        CheckpointError: it is too large, or no JSON object.
    """
    return json_object(read_small(path, JSON_BYTES), str(path), values=values)
