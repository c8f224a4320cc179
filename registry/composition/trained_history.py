"""Trained compositions: their parent's files, byte for byte, with the tensors that the training changed.

The catalog has the history of one: the composition that it began from, and the trainings that followed on that.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from registry.checkpoint.model_files import Stored, read_headers
from registry.composition.card import CARD
from registry.composition.found import ROUTERS
from registry.composition.manifest import (
    COMPOSE_AGAIN,
    ComposedFolder,
    CompositionManifest,
    folder_document,
    has_digest,
)
from registry.composition.trained import trained_card, trained_part
from registry.errors import CheckpointError, NotFoundError
from registry.io.dtypes import NAMES
from registry.io.model_folder import MARKER, fresh_folder, json_file, write_files
from registry.io.torch_blocks import to_tensor
from registry.io.tree_digest import PREFIX, digest_like
from registry.progress import Advance, Progress
from registry.runtime.gates import GATE
from registry.workspace import Workspace, open_array
from store.arrays import ArraySource
from store.catalog import ArrayLink, CompositionRecord, VersionRecord
from store.lock import exclusive


class TrainedDocument(NamedTuple):
    """The document of a trained composition, and its digest."""

    digest: str
    content: Mapping[str, Any]


def stored_tensors(composed: ComposedFolder) -> dict[str, Stored]:
    """Return the place of each tensor of a composed folder, by name (CheckpointError: no safetensors file)."""
    return read_headers([composed.path / name for name in composed.files if name.endswith(".safetensors")])


def write_trained(
    parent: ComposedFolder,
    tensors: Mapping[str, ArraySource],
    trainings: Sequence[TrainedDocument],
    out: Path,
    *,
    replace: bool | None,
    record: Callable[[], None],
    progress: Progress,
) -> None:
    """Write the trained composition to `out`, which appears whole or not at all.

    Args:
        tensors: name → new content of the tensors that changed, each of the dtype and shape that it has in the parent.
        trainings: the documents of the trainings that followed on the parent, the last one that of the result.
        out: the folder; absent, empty, or with `replace` an earlier composition.
        record: called when everything is written, just before the folder appears; an exception prevents that.

    Raises:
        OutputError: `out` cannot be written to.
        StorageError: the disk is full or refuses.
        CheckpointError: the parent was changed during the training, or lacks such a tensor.
    """
    places = stored_tensors(parent)
    for name, source in tensors.items():
        place = places.get(name)
        if place is None or (NAMES.get(place.dtype), place.shape) != (source.dtype, source.shape):
            found = "no such tensor" if place is None else f"one of {NAMES.get(place.dtype)} {list(place.shape)}"
            raise CheckpointError(
                f"{parent.path}: tensor {name} of {source.dtype} {list(source.shape)} was trained, and it has {found}",
                "name the folder that was trained",
            )
    nbytes = sum((parent.path / name).stat().st_size for name in parent.files)
    with fresh_folder(out, replace=replace, nbytes=nbytes) as folder:
        digests = {}
        with progress("writing", nbytes, "B") as advance:
            for name in parent.files:
                patches = {
                    places[tensor].begin: source
                    for tensor, source in tensors.items()
                    if places[tensor].file == parent.path / name
                }
                if name != CARD:
                    digests[name] = _copy(parent, name, folder / name, patches, advance)
        last = trainings[-1]
        if CARD in parent.files:
            page = parent.card.decode()
            for training in trainings:
                page = trained_card(page, training.content, training.digest)
            digests |= write_files(folder, {CARD: page.encode()})
        write_files(folder, {MARKER: json_file(folder_document(last.content, last.digest, digests))})
        record()


def _copy(parent: ComposedFolder, name: str, target: Path, patches: Mapping[int, ArraySource], advance: Advance) -> str:
    """Copy a file with some tensors (offset → content) replaced, and return the digest of the copy."""
    known, is_weights = parent.files[name], name.endswith(".safetensors")
    shutil.copyfile(parent.path / name, target)
    if not has_digest(target, known, advance):
        raise CheckpointError(
            f"{parent.path / name} was changed during training", "compose it again, and train the new folder"
        )
    with target.open("r+b") as copy:
        for begin, patch in patches.items():
            copy.seek(begin)
            for block in patch.blocks():
                copy.write(block.data.cast("B"))
    if not patches and is_weights == known.startswith(PREFIX):
        return known
    return digest_like(target, PREFIX if is_weights else "")


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
    """Return the history of the trained composition with a digest, from the catalog; messages name its folder.

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
        stored = {name: link.digest for name, link in links.items()}
        if not stored or stored != document["training"].get("tensors", stored):  # that of routers alone names none
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
    """Write a trained composition of the versions `used` to `out`, from a folder of its root and the stored tensors.

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
        tensors = {link.name: open_array(workspace.arrays, link, "the trained tensor") for link in history.arrays}
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
    if record:
        workspace.tell("compose", digest)


_BIAS = ".bias"


def trained_biases(workspace: Workspace, composition: CompositionRecord) -> dict[str, tuple[float, ...]]:
    """Return expert → the biases of its logits after a training (arguments and errors as `Registry.trained_biases`)."""
    document = composition.document
    router = ROUTERS.get(document["recipe"].get("router") or "")
    if router is None or not router.is_trained or "training" not in document:
        return {}
    experts = [member["name"] for member in document["members"]]
    layers: dict[int, list[float]] = {}
    digest: str | None = composition.digest
    while digest is not None:
        for link in workspace.catalog.trained_arrays(digest):
            gate = GATE.fullmatch(link.name.removesuffix(_BIAS)) if link.name.endswith(_BIAS) else None
            if gate and int(gate[1]) not in layers:  # a later training is read first
                layers[int(gate[1])] = to_tensor(workspace.arrays.read(link.digest), link.dtype).float().tolist()
        digest = (workspace.catalog.composition_document(digest) or {}).get("parent")
    return {
        expert: tuple(layers[layer][number] for layer in sorted(layers))
        for number, expert in enumerate(experts)
        if layers
    }
