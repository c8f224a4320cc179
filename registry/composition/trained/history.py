"""History of a trained composition: the composition that it began from, and the trainings that followed on that."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.composition.integrity import COMPOSE_AGAIN, ComposedFolder
from registry.composition.manifest import CompositionManifest
from registry.composition.trained.trained_parts import trained_part
from registry.composition.trained.write_trained import TrainedDocument, write_trained
from registry.errors import CheckpointError, DamagedError, NotFoundError
from registry.io.model_folder import MARKER
from registry.workspace import Workspace
from store.arrays import ArraySource
from store.catalog import ArrayLink, VersionRecord
from store.lock import exclusive


@dataclass(frozen=True)
class History:
    """The history of a trained composition.

    Attributes:
        root: what the first training began from, which is composed from its recipe.
        trainings: their documents, the oldest first.
        arrays: the tensors that differ from the root's, by name; of those that were trained twice, the later ones.
    """

    root: CompositionManifest
    trainings: tuple[TrainedDocument, ...]
    arrays: tuple[ArrayLink, ...]

    @property
    def digest(self) -> str:
        """The digest of the composition."""
        return self.trainings[-1].digest


def read_history(workspace: Workspace, digest: str, folder: Path) -> History:
    """Return the history of the trained composition with a digest, from the catalog.

    Args:
        workspace: the registry that it was trained with.
        digest: of the composition.
        folder: its folder, for messages.

    Raises:
        NotFoundError: it was not trained here, or its tensors are not stored.
        CheckpointError: the composition was not trained at all.
    """
    catalog, trainings, arrays = workspace.catalog, list[TrainedDocument](), dict[str, ArrayLink]()
    while True:
        document = catalog.composition_document(digest)
        if document is None:
            raise NotFoundError(
                f"{folder} was trained, and composition {digest[:12]} was not made in this registry",
                "use the registry that it was trained with: --home DIR",
            )
        manifest = CompositionManifest.from_document(document, f"composition {digest[:12]}")
        if manifest.parent is None and not trainings:
            raise CheckpointError(
                f"{folder / MARKER} was changed: composition {digest[:12]} was not trained", COMPOSE_AGAIN
            )
        if manifest.parent is None:
            return History(manifest, tuple(reversed(trainings)), tuple(arrays.values()))
        links = {link.name: link for link in catalog.trained_arrays(digest)}
        if not _has_all(links, document["training"]):
            raise NotFoundError(
                f"the tensors that were trained for composition {digest[:12]} are not stored: a member was purged, or "
                "it was trained by a program from before they were",
                f"train it again, from composition {manifest.parent[:12]}: reg train DIR --train "
                f"{trained_part(document['training'])} --data FILE --out DIR",
            )
        arrays = links | arrays
        trainings.append(TrainedDocument(digest, document))
        digest = manifest.parent


def write_again(
    workspace: Workspace, history: History, root: Path, out: Path, used: Sequence[VersionRecord], *, record: bool
) -> None:
    """Write a trained composition to `out`, from a folder of its root and the stored tensors.

    Args:
        workspace: the registry.
        history: of the composition.
        root: the folder of the root.
        out: a folder; absent or empty.
        used: the versions that the composition is made from.
        record: record the folder in the catalog.

    Raises:
        ConflictError: a version was opted out in the meantime.
        DamagedError: a stored tensor is damaged.
        StorageError: the disk is full or refuses.
    """
    catalog, digest, document = workspace.catalog, history.digest, dict(history.trainings[-1].content)

    def recorded() -> None:
        if record:
            catalog.record_composition(digest, document, used, str(out), catalog.trained_arrays(digest))

    with workspace.reading(*used):
        tensors = {link.name: _opened(workspace, link) for link in history.arrays}
        with exclusive(workspace.home.output_lock(out), f"composing into {out}") if record else nullcontext():
            write_trained(
                ComposedFolder.read(root),
                tensors,
                history.trainings,
                out,
                replace=None,
                record=recorded,
                progress=workspace.progress,
            )


def _has_all(links: Mapping[str, ArrayLink], training: Mapping[str, Any]) -> bool:
    """Tell whether the arrays of a training are those that its document names; that of routers alone names none."""
    if "tensors" not in training:
        return bool(links)
    return bool({name: link.digest for name, link in links.items()} == training["tensors"])


def _opened(workspace: Workspace, link: ArrayLink) -> ArraySource:
    source = workspace.arrays.open(link.digest)
    if (source.dtype, source.shape) != (link.dtype, link.shape):
        raise DamagedError(
            f"the trained tensor {link.name} is {source.dtype} {list(source.shape)}, the catalog says {link.dtype} "
            f"{list(link.shape)}",
            "reg verify",
        )
    return source
