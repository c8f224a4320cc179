"""Reproduction of a composed folder: composed again from its own `composition.json`, and compared byte by byte.

Folders of format 1 are read as any other: every file has its SHA-256, and tensors begin at a multiple of 8 bytes of
their file. One that is reproduced is compared with what format 1 would make of the new composition.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from registry.composition.card import CARD
from registry.composition.compose import compose, plan_composition, write_plan
from registry.composition.manifest import ComposedFolder, CompositionManifest
from registry.composition.trained_history import read_history, write_again
from registry.errors import InvalidInputError
from registry.io.disk import CHUNK
from registry.io.model_folder import MARKER, check_apart, check_output, json_file
from registry.io.tree_digest import PREFIX
from registry.io.untrusted import read_json
from registry.io.work_dirs import working_folder
from registry.names.resolve import by_digest
from registry.progress import Advance
from registry.workspace import Workspace
from store.catalog import VersionRecord

FIRST_FORMAT = 1

State = Literal["same", "differs", "missing", "added", "pushed"]


@dataclass(frozen=True)
class Compared:
    """One file of the two folders.

    Attributes:
        name: its path in the folder.
        state: `same`; `differs`; `missing`: only in the new composition; `added`: only in the folder; `pushed`: a model
            card that is the same but for the additions of `reg push`.
        at: the first byte that differs, counted from 0.
    """

    name: str
    state: State
    at: int | None = None


@dataclass(frozen=True)
class Reproduction:
    """The result of composing a folder again.

    Attributes:
        versions: the versions that it was composed of, the base model last.
        files: every file of either folder, by name.
        out: the folder of the new composition; None if it was temporary.
    """

    folder: Path
    digest: str
    versions: tuple[VersionRecord, ...]
    files: tuple[Compared, ...]
    nbytes: int
    out: Path | None = None

    @property
    def differing(self) -> tuple[Compared, ...]:
        """The files that are not the same."""
        return tuple(file for file in self.files if file.state not in ("same", "pushed"))

    @property
    def is_same(self) -> bool:
        """True if every byte of every file is the same, apart from additions of a push to the model card."""
        return not self.differing


def reproduce_folder(workspace: Workspace, folder: Path, out: Path | None) -> Reproduction:
    """Compose a folder again and compare it (see `Registry.reproduce`)."""
    folder = folder.absolute()
    workspace.check_owner()
    composed = ComposedFolder.read(folder)
    manifest, is_first = composed.manifest, composed.content["format"] == FIRST_FORMAT
    holder = str(folder), composed.digest
    used = tuple(by_digest(workspace.catalog, ref.name, ref.digest, *holder) for ref in manifest.versions)
    base = manifest.base and by_digest(workspace.catalog, manifest.base.name, manifest.base.digest, *holder)
    history = None if manifest.parent is None else read_history(workspace, composed.digest, folder)
    manifest = manifest if history is None else history.root
    manifest.check_makeable()
    _check_device(manifest)
    copies, base_ref = manifest.from_base, base.ref if base else None
    experts = [] if copies else [version.ref for version in used[: len(manifest.members)]]
    if out is not None:
        out = out.absolute()
        check_apart(out, folder, "a compared folder is never overwritten")
        check_output(out, replace=None)
    with working_folder(workspace.home.work, [version.digest for version in used]) as work:
        again = work / "again" if out is None else out
        if history is None and out is not None:
            plan = compose(workspace, experts, out, manifest.recipe, base=base_ref, from_base=copies)
        else:
            plan = plan_composition(workspace, experts, manifest.recipe, base=base_ref, from_base=copies)
            write_plan(workspace, plan, again if history is None else work / "root")
        if history is not None:
            write_again(workspace, history, work / "root", again, used, record=out is not None)
        files, nbytes = compare(workspace, composed, again, is_first=is_first)
    return Reproduction(folder, (history or plan).digest, used, files, nbytes, out)


def compare(
    workspace: Workspace, folder: ComposedFolder, again: Path, *, is_first: bool
) -> tuple[tuple[Compared, ...], int]:
    """Compare a folder with a new composition, in format 1 if `is_first`; return every file, and the bytes compared."""
    files, expected = folder.paths, ComposedFolder.read(again).paths
    total = sum(path.stat().st_size for path in expected.values())
    compared = []
    with workspace.progress("comparing", total, "B") as advance:
        for name in sorted({*files, *expected}):
            if name not in expected:
                compared.append(Compared(name, "added"))
            elif name not in files or not files[name].is_file():
                compared.append(Compared(name, "missing"))
            else:
                at = _first_difference(files[name], _chunks(name, expected[name], is_first), advance)
                compared.append(Compared(name, "same" if at is None else "differs", at))
                if at is not None and name == CARD and folder.card == expected[name].read_bytes():
                    compared[-1] = Compared(name, "pushed")
    return tuple(compared), total


def _chunks(name: str, path: Path, is_first: bool) -> Iterator[bytes]:
    """Yield the bytes that a file of the new composition has in the format of the folder."""
    if is_first and name == MARKER:
        yield first_document(path.parent)
    else:
        yield from read_chunks(path, is_first=is_first and name.endswith(".safetensors"))


def _first_difference(path: Path, expected: Iterable[bytes], advance: Advance) -> int | None:
    offset = 0
    with path.open("rb") as file:
        for b in expected:
            a = file.read(len(b))
            if a != b:
                shared = (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
                return offset + next(shared, len(a))
            offset += len(b)
            advance(len(b))
        return offset if file.read(1) else None


def _check_device(manifest: CompositionManifest) -> None:
    """Check that passes, if the recipe has any, can run on the kind of device that they ran on."""
    recipe = manifest.recipe
    if recipe.device is None:
        return

    import torch

    try:
        torch.empty(0, device=recipe.device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidInputError(
            f"it was composed with passes on the device {recipe.device!r}, which this machine lacks",
            "reproduce it on a machine with such a device: the last bits depend on it",
        ) from error


def read_chunks(path: Path, *, is_first: bool = False) -> Iterator[bytes]:
    """Yield the bytes of a file; if `is_first` of weights as they are in format 1, with less space after the header."""
    with path.open("rb") as file:
        if is_first:
            text = file.read(int.from_bytes(file.read(8), "little")).rstrip(b" ")
            text += b" " * (-len(text) % 8)
            yield len(text).to_bytes(8, "little") + text
        while data := file.read(CHUNK):
            yield data


def first_document(folder: Path) -> bytes:
    """Return the `composition.json` of a composed folder as it is in format 1; files of weights are read for it."""
    document = read_json(folder / MARKER)
    files = document["files"]
    for name, digest in files.items():
        if digest.startswith(PREFIX):
            state = hashlib.sha256()
            for data in read_chunks(folder / name, is_first=True):
                state.update(data)
            files[name] = state.hexdigest()
    return json_file(document | {"format": FIRST_FORMAT})
