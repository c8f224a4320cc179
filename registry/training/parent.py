"""The composed folder whose routers are trained: proved to be whole, and its members to be registered still."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.checkpoint.weights import Stored, read_headers
from registry.errors import CheckpointError
from registry.io.dtypes import NAMES, WEIGHT_DTYPES
from registry.io.files import is_plain, read_json, some
from registry.io.model_folder import MARKER
from registry.io.schema import is_digest
from registry.member import Member, load_member
from registry.names.resolve import by_digest
from registry.progress import Progress
from registry.runtime.gates import GATE
from registry.workspace import Workspace
from store.catalog import VersionRecord
from store.digest import json_digest

CHUNK = 2**22
_AGAIN = "compose it again: reg compose --experts … --out DIR"


@dataclass(frozen=True)
class Parent:
    """A composed folder as its `composition.json` has it.

    Attributes:
        folder: where it is.
        digest: the composition's.
        document: what that digest is taken over.
        files: file name → SHA-256 of every other file.
        gates: layer → (tensor name, where it is) of its router.
    """

    folder: Path
    digest: str
    document: dict[str, Any]
    files: dict[str, str]
    gates: dict[int, tuple[str, Stored]]

    @property
    def nbytes(self) -> int:
        """What its files take."""
        return sum((self.folder / name).stat().st_size for name in self.files)


def read_parent(folder: Path, progress: Progress) -> Parent:
    """Read a composed folder, and hash its every file.

    Raises:
        CheckpointError: it was not composed by this program, or was changed since.
    """
    marker = folder / MARKER
    if not marker.is_file():
        raise CheckpointError(
            f"{folder} has no {MARKER}, so it was not composed by this program",
            "name a composed folder: reg compose --experts … --out DIR",
        )
    document = read_json(marker)
    digest, files, _ = (document.pop(key, None) for key in ("digest", "files", "lam"))  # no part of what has the digest
    if not is_digest(digest) or not isinstance(files, dict) or json_digest(document) != digest:
        raise CheckpointError(f"{marker} was changed since it was written: it does not have its digest", _AGAIN)
    files = {str(name): str(sha) for name, sha in files.items()}
    if outside := [name for name in files if not is_plain(name) or name == MARKER]:
        raise CheckpointError(f"{marker} names files outside the folder: {outside[0]!r}", _AGAIN)
    if absent := [name for name in files if not (folder / name).is_file()]:
        raise CheckpointError(f"{folder}: {some(absent)} missing", _AGAIN)
    with progress("checking", sum((folder / name).stat().st_size for name in files), "B") as advance:
        for name, expected in files.items():
            state = hashlib.sha256()
            with (folder / name).open("rb") as file:
                while data := file.read(CHUNK):
                    state.update(data)
                    advance(len(data))
            if state.hexdigest() != expected:
                raise CheckpointError(f"{folder / name} was changed since it was written", _AGAIN)
    gates = {}
    for name, stored in read_headers([folder / name for name in files if name.endswith(".safetensors")]).items():
        if match := GATE.fullmatch(name.removesuffix(".weight")):
            gates[int(match[1])] = (name, stored)
            if NAMES.get(stored.dtype) not in WEIGHT_DTYPES or len(stored.shape) != 2:
                raise CheckpointError(f"{stored.file}: {name} is no router's weight", _AGAIN)
    return Parent(folder, digest, document, files, gates)


def members_of(parent: Parent, workspace: Workspace) -> tuple[list[Member], list[VersionRecord]]:
    """Return the members, in the order of the experts, and the versions used, which a base model may add to.

    Raises:
        NotFoundError: one is not registered here.
        ConflictError: one was opted out.
        CheckpointError: the document names none.
    """
    named, base = parent.document.get("members"), parent.document.get("base")
    everyone: Sequence[Any] = [*named, *([base] if base else [])] if isinstance(named, list) else []
    if not everyone or not all(isinstance(one, dict) and {"name", "digest"} <= one.keys() for one in everyone):
        raise CheckpointError(f"{parent.folder / MARKER} names no members", _AGAIN)
    used = [by_digest(workspace.catalog, str(one["name"]), str(one["digest"]), str(parent.folder)) for one in everyone]
    return [load_member(workspace, version) for version in used[: len(named or ())]], used
