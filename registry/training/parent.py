"""Parent of a training: the composed folder whose routers are trained, and its registered members."""

from dataclasses import dataclass
from pathlib import Path

from registry.checkpoint.weights import Stored, read_headers
from registry.composition.integrity import COMPOSE_AGAIN, ComposedFolder
from registry.composition.recipe import Recipe
from registry.composition.recipe.recipe_fields import FROM_COUNTS
from registry.errors import CheckpointError, InvalidInputError
from registry.io.dtypes import NAMES, WEIGHT_DTYPES
from registry.member import Member, load_member
from registry.names.resolve import by_digest
from registry.progress import Progress
from registry.runtime.gates import GATE
from registry.workspace import Workspace
from store.catalog import VersionRecord


@dataclass(frozen=True)
class Parent:
    """A composed folder and its routers.

    Attributes:
        composed: the folder.
        gates: layer → (tensor name, stored tensor) of its router.
    """

    composed: ComposedFolder
    gates: dict[int, tuple[str, Stored]]

    @property
    def folder(self) -> Path:
        """Its path."""
        return self.composed.path

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return sum((self.folder / name).stat().st_size for name in self.composed.files)


def read_parent(folder: Path, progress: Progress) -> Parent:
    """Read a composed folder, and check the digest of every file.

    Raises:
        CheckpointError: the folder was not composed by this program, or was changed since.
        InvalidInputError: its routers read nothing of the stream, so there is nothing to train.
    """
    composed = ComposedFolder.read(folder)
    recipe = composed.manifest.recipe
    if isinstance(recipe, Recipe) and recipe.to == "moe" and recipe.router in FROM_COUNTS:
        raise InvalidInputError(
            f"{folder} has nothing to train: router method {recipe.router!r} reads how often experts use the tokens of "
            "the text so far, and nothing of the stream",
            "compose another folder to train: reg compose --experts … --router ridge --out DIR",
        )
    composed.check(progress)
    gates = {}
    weights = [folder / name for name in composed.files if name.endswith(".safetensors")]
    for name, stored in read_headers(weights).items():
        if match := GATE.fullmatch(name.removesuffix(".weight")):
            gates[int(match[1])] = (name, stored)
            if NAMES.get(stored.dtype) not in WEIGHT_DTYPES or len(stored.shape) != 2:
                raise CheckpointError(f"{stored.file}: {name} is not a router's weight", COMPOSE_AGAIN)
    return Parent(composed, gates)


def members_of(parent: Parent, workspace: Workspace) -> tuple[list[Member], list[VersionRecord]]:
    """Return the members in the order of the experts, and all versions used: these and the base model, if it took part.

    Raises:
        NotFoundError: a version is not registered here.
        ConflictError: a version was opted out.
    """
    manifest = parent.composed.manifest
    refs = (*manifest.members, *([manifest.base] if manifest.base else []))
    used = [by_digest(workspace.catalog, ref.name, ref.digest, str(parent.folder)) for ref in refs]
    return [load_member(workspace, version) for version in used[: len(manifest.members)]], used
