"""Reproducing: a composed folder made again from what its own document says, and compared byte by byte."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from registry.composition.cards.pushed import CARD, without_additions
from registry.composition.compose import compose, plan_composition, write_plan
from registry.composition.integrity import ComposedFolder, is_of_hub, list_files
from registry.composition.manifest import CompositionManifest
from registry.composition.passes import working_folder
from registry.composition.recipe import Recipe
from registry.errors import CheckpointError, InvalidInputError, OutputError
from registry.io.hashing import CHUNK
from registry.io.model_folder import check_output
from registry.names.resolve import by_digest
from registry.progress import Advance
from registry.workspace import Workspace
from store.catalog import VersionRecord

State = Literal["same", "differs", "missing", "added", "pushed"]


@dataclass(frozen=True)
class Compared:
    """One file of the two folders.

    Attributes:
        name: its path in the folder.
        state: `same`; `differs`; `missing`: composed now, and not in the folder; `added`: in the folder, and not
            composed; `pushed`: the model card, the same but for what reg push added between its marks.
        at: the first byte that differs, counted from 0.
    """

    name: str
    state: State
    at: int | None = None


@dataclass(frozen=True)
class Reproduction:
    """What came of composing a folder again.

    Attributes:
        folder: the folder.
        digest: the composition's, as it is now.
        versions: what it was composed of now, the base model last.
        files: every file of either folder, by name.
        nbytes: bytes compared.
        out: where what was composed now is kept, None where it is not.
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
        """Every byte of every file is the same, but for what a push added to the card."""
        return not self.differing


def reproduce_folder(workspace: Workspace, folder: Path, out: Path | None) -> Reproduction:
    """Compose a folder again and compare it (see `Registry.reproduce`)."""
    folder = folder.absolute()
    workspace.check_owner()
    described = ComposedFolder.read(folder).manifest
    if described.parent is not None:
        raise CheckpointError(
            f"the routers of {folder} were trained, and a training is that of one machine; "
            f"its parent, composition {described.parent}, can be reproduced",
            f"run: reg reproduce on a folder of the parent, which this may tell: reg compositions {described.parent}",
        )
    versions = [by_digest(workspace.catalog, one.name, one.digest, str(folder)) for one in described.members]
    base = described.base and by_digest(workspace.catalog, described.base.name, described.base.digest, str(folder))
    _check_device(described)
    experts, named = [version.ref for version in versions], base.ref if base else None
    used = (*versions, *([base] if base else []))
    if out is not None:
        out = out.absolute()
        if out.resolve().is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(out.resolve()):
            raise OutputError(f"{out} and {folder} hold one another: what is compared stays", "choose another --out")
        check_output(out, replace=None)
        digest = compose(workspace, experts, out, described.recipe, base=named).digest
        files, nbytes = compare(workspace, folder, out)
        return Reproduction(folder, digest, used, files, nbytes, out)
    plan = plan_composition(workspace, experts, described.recipe, base=named)
    with working_folder(workspace.home.work, [version.digest for version in used]) as work:
        again = work / "again"
        write_plan(workspace, plan, again)
        files, nbytes = compare(workspace, folder, again)
    return Reproduction(folder, plan.digest, used, files, nbytes)


def compare(workspace: Workspace, folder: Path, again: Path) -> tuple[tuple[Compared, ...], int]:
    """Return every file of either folder, and how many bytes were compared."""
    found, made = _files(folder), _files(again)
    total = sum(path.stat().st_size for path in made.values())
    compared = []
    with workspace.progress("comparing", total, "B") as advance:
        for name in sorted({*found, *made}):
            if name not in made:
                compared.append(Compared(name, "added"))
            elif name not in found or not found[name].is_file():
                compared.append(Compared(name, "missing"))
            else:
                at = _first_difference(found[name], made[name], advance)
                compared.append(Compared(name, "same" if at is None else "differs", at))
                if at is not None and name == CARD and _is_pushed(found[name], made[name]):
                    compared[-1] = Compared(name, "pushed")
    return tuple(compared), total


def _files(folder: Path) -> dict[str, Path]:
    """Return everything below a folder that is no folder, links included, but for what fetching from the Hub left."""
    return {name: path for name, path in list_files(folder).items() if not is_of_hub(name)}


def _first_difference(one: Path, other: Path, advance: Advance) -> int | None:
    place = 0
    with one.open("rb") as left, other.open("rb") as right:
        while True:
            a, b = left.read(CHUNK), right.read(CHUNK)
            if a != b:
                shared = (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
                return place + next(shared, min(len(a), len(b)))
            if not a:
                return None
            place += len(a)
            advance(len(b))


def _is_pushed(card: Path, made: Path) -> bool:
    return without_additions(card.read_bytes()) == made.read_bytes()


def _check_device(described: CompositionManifest) -> None:
    """Check that passes can run on the kind of device that they ran on, where there were any."""
    recipe = described.recipe
    if not isinstance(recipe, Recipe) or recipe.device is None:
        return

    import torch

    try:
        torch.empty(0, device=recipe.device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidInputError(
            f"it was composed with passes on the device {recipe.device!r}, which is not here",
            "reproduce it where there is one: the last bits depend on it",
        ) from error
