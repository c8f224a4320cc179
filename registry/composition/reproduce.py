"""Reproducing: a composed folder made again from what its own document says, and compared byte by byte."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from registry.checkpoint.model_files import read_json
from registry.composition.cards.pushed import CARD, without_additions
from registry.composition.integrity import CHUNK, everything_in, is_of_hub
from registry.composition.manifest import Description
from registry.composition.passes import working_folder
from registry.composition.recipe import Recipe
from registry.errors import CheckpointError, InvalidInputError, OutputError
from registry.io.model_folder import MARKER, check_output
from registry.names.resolve import by_digest
from registry.progress import Advance
from store.catalog import VersionRecord
from store.ownership import check_owner

if TYPE_CHECKING:
    from registry.composition.compose import Composer

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


def read_composed(folder: Path) -> tuple[dict[str, object], Description]:
    """Return the `composition.json` of a folder, and what it says.

    Raises:
        CheckpointError: there is none, or it is not what this program writes.
        InvalidInputError: a member's name cannot be one.
    """
    marker = folder / MARKER
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder", "name a composed folder: reg compose --experts … --out DIR")
    if not marker.is_file():
        raise CheckpointError(
            f"{folder} has no {MARKER}, so it was not composed by this program",
            "name a composed folder: reg compose --experts … --out DIR",
        )
    document = read_json(marker)
    return document, Description.from_document(document, str(marker))


def reproduce(registry: "Composer", folder: Path, out: Path | None) -> Reproduction:
    """Compose a folder again and compare it (see `Registry.reproduce`)."""
    folder = folder.absolute()
    check_owner(registry.catalog, registry.arrays)
    _, described = read_composed(folder)
    if described.parent is not None:
        raise CheckpointError(
            f"the routers of {folder} were trained, and a training is that of one machine; "
            f"its parent, composition {described.parent}, can be reproduced",
            f"run: reg reproduce on a folder of the parent, which this may tell: reg compositions {described.parent}",
        )
    versions = [by_digest(registry.catalog, one.name, one.digest, str(folder)) for one in described.members]
    base = described.base and by_digest(registry.catalog, described.base.name, described.base.digest, str(folder))
    _check_device(described)
    experts, named = [version.ref for version in versions], base.ref if base else None
    used = (*versions, *([base] if base else []))
    if out is not None:
        out = out.absolute()
        if out.resolve().is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(out.resolve()):
            raise OutputError(f"{out} and {folder} hold one another: what is compared stays", "choose another --out")
        check_output(out, replace=None)
        digest = registry.compose(experts, out, described.recipe, base=named).digest
        files, nbytes = compare(registry, folder, out)
        return Reproduction(folder, digest, used, files, nbytes, out)
    plan = registry.plan(experts, described.recipe, base=named)
    with working_folder(registry.home.work, [version.digest for version in used]) as work:
        again = work / "again"
        registry.write(plan, again)
        files, nbytes = compare(registry, folder, again)
    return Reproduction(folder, plan.digest, used, files, nbytes)


def compare(registry: "Composer", folder: Path, again: Path) -> tuple[tuple[Compared, ...], int]:
    """Return every file of either folder, and how many bytes were compared."""
    found, made = _files(folder), _files(again)
    total = sum(path.stat().st_size for path in made.values())
    compared = []
    with registry.progress("comparing", total, "B") as advance:
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
    return {name: path for name, path in everything_in(folder).items() if not is_of_hub(name)}


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


def _check_device(described: Description) -> None:
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
