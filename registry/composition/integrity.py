"""Whether a composed folder is, byte for byte, the one that its `composition.json` describes."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from registry.composition.cards.pushed import CARD, without_additions
from registry.io.model_folder import MARKER
from registry.progress import Progress
from store.digest import json_digest

CHUNK = 2**22
_HUB = (".cache/huggingface/", ".git/")


def problems_of(
    folder: Path,
    document: Mapping[str, Any],
    progress: Progress,
    *,
    ignored: Callable[[str], bool] = lambda name: False,
) -> Iterator[str]:
    """Yield, one line each, what of a folder is not as its document says; what a push added to its card may be there.

    Args:
        folder: the folder.
        document: its `composition.json`.
        progress: told of the bytes read.
        ignored: which further files may be in it, by their path there.
    """
    files, digest = document.get("files"), document.get("digest")
    said = {key: value for key, value in document.items() if key not in ("digest", "files", "lam")}
    if not isinstance(files, dict) or json_digest(said) != digest:
        yield f"{folder / MARKER} was changed since it was written"
        return
    found = list_files(folder)
    total = sum(path.stat().st_size for path in found.values() if path.is_file())
    with progress("checking", total, "B") as advance:
        for name in sorted({*files, *found} - {MARKER}):
            if name not in files:
                if not ignored(name):
                    yield f"{folder / name} is no file of the composition"
            elif name not in found or not found[name].is_file():
                yield f"{folder / name} is missing"
            elif file_digest(found[name], advance) != files[name] and not (
                name == CARD and _digest(without_additions(found[name].read_bytes())) == files[name]
            ):
                yield f"{folder / name} was changed since it was written"


def list_files(folder: Path) -> dict[str, Path]:
    """Return everything below a folder that is no folder, links included, by its path there."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return {path.relative_to(folder).as_posix(): path for path in found}


def file_digest(path: Path, advance: Callable[[int], None]) -> str:
    """Return the SHA-256 of a file."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            state.update(data)
            advance(len(data))
    return state.hexdigest()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def is_of_hub(name: str) -> bool:
    """Tell whether a file of a folder is what fetching it from the Hub left there, by its path."""
    return name == ".gitattributes" or name.startswith(_HUB)
