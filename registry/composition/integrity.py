"""Composed folders, and the check that every byte of one is as it was composed.

A folder that was pushed to the Hub and downloaded again passes the check: additions of the push to the model card,
between marks, and files that the download leaves in the folder do not count as changes.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from registry.composition.manifest import DOCUMENT_FORMAT, CompositionManifest, read_composed
from registry.composition.pushed_card import CARD, without_additions
from registry.errors import CheckpointError
from registry.io.model_folder import MARKER
from registry.io.tree_digest import digest_like
from registry.progress import Advance, Progress
from store.digest import json_digest

NOT_DIGESTED = ("digest", "files", "lam")
"""Keys of `composition.json` that the composition's digest does not cover."""

COMPOSE_AGAIN = "compose it again: reg compose --experts … --out DIR"

_HUB = (".cache/huggingface/", ".git/")
"""Folders that a download from the Hub leaves behind."""


@dataclass(frozen=True)
class ComposedFolder:
    """A folder with a `composition.json`.

    Attributes:
        path: the folder.
        content: the content of `composition.json`.
        manifest: the same, parsed.
    """

    path: Path
    content: Mapping[str, Any]
    manifest: CompositionManifest

    @classmethod
    def read(cls, path: Path) -> "ComposedFolder":
        """Read the `composition.json` of a folder; `problems` compares the other files.

        Raises:
            CheckpointError: the file is absent, or this program did not write it.
            InvalidInputError: a member's name is not valid.
        """
        content, manifest = read_composed(path)
        return cls(path, content, manifest)

    @property
    def digest(self) -> str:
        """The composition's digest, as the folder states it."""
        return str(self.content.get("digest"))

    @property
    def document(self) -> dict[str, Any]:
        """The composition's document, which its digest covers; it has a format number of its own."""
        covered = {key: value for key, value in self.content.items() if key not in NOT_DIGESTED}
        return covered | {"format": DOCUMENT_FORMAT}

    @property
    def files(self) -> dict[str, str]:
        """File → digest as it was composed, for every file but `composition.json`.

        A digest is a tree digest, with its prefix, or SHA-256: of weights in a folder of format 2, and of any other.
        """
        files = self.content.get("files")
        return {str(name): str(digest) for name, digest in files.items()} if isinstance(files, dict) else {}

    @cached_property
    def paths(self) -> dict[str, Path]:
        """Relative path → path of every file below the folder, links included, without files left by a download."""
        return {name: path for name, path in list_files(self.path).items() if not is_of_hub(name)}

    def problems(self, progress: Progress) -> Iterator[str]:
        """Yield a line for every difference from the folder as it was composed.

        Args:
            progress: reports the bytes read.
        """
        if not self.files or json_digest(self.document) != self.digest:
            yield f"{self.path / MARKER} was changed since it was written"
            return
        files, paths = self.files, self.paths
        total = sum(path.stat().st_size for path in paths.values() if path.is_file())
        with progress("checking", total, "B") as advance:
            for name in sorted({*files, *paths} - {MARKER}):
                if name not in files:
                    yield f"{self.path / name} is not a file of the composition"
                elif name not in paths or not paths[name].is_file():
                    yield f"{self.path / name} is missing"
                elif not _has_digest(paths[name], files[name], advance) and not (
                    name == CARD and hashlib.sha256(self.card).hexdigest() == files[name]
                ):
                    yield f"{self.path / name} was changed since it was written"

    def check(self, progress: Progress, hint: str = COMPOSE_AGAIN) -> None:
        """Check that there are no `problems`.

        Raises:
            CheckpointError: there are problems; the message is the first one.
        """
        for problem in self.problems(progress):
            raise CheckpointError(problem, hint)

    @property
    def card(self) -> bytes:
        """The model card without the additions of a push."""
        return without_additions((self.path / CARD).read_bytes())


def _has_digest(path: Path, digest: str, advance: Advance) -> bool:
    try:
        return digest_like(path, digest, advance) == digest
    except CheckpointError:  # it is no longer a safetensors file
        return False


def list_files(folder: Path) -> dict[str, Path]:
    """Return relative path → path of every file below a folder, links included."""
    paths = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return {path.relative_to(folder).as_posix(): path for path in paths}


def is_of_hub(name: str) -> bool:
    """Tell whether a file, by its path in the folder, was left by a download from the Hub."""
    return name == ".gitattributes" or name.startswith(_HUB)
