"""Writer of a trained composition: its parent's files, byte for byte, with the tensors that the training changed."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from registry.checkpoint.model_files import Stored, read_headers
from registry.composition.integrity import ComposedFolder
from registry.composition.manifest import folder_document
from registry.composition.pushed_card import CARD
from registry.composition.trained.trained_card import trained_card
from registry.errors import CheckpointError
from registry.io.disk import CHUNK
from registry.io.dtypes import NAMES
from registry.io.model_folder import MARKER, fresh_folder, json_file, write_files
from registry.io.tree_digest import PREFIX, TreeHash
from registry.progress import Advance, Progress
from store.arrays import ArraySource


@dataclass(frozen=True)
class TrainedDocument:
    """The document of a trained composition, and its digest."""

    digest: str
    content: Mapping[str, Any]


def stored_tensors(composed: ComposedFolder) -> dict[str, Stored]:
    """Return the location of every tensor of a composed folder, by name.

    Raises:
        CheckpointError: a file is not a safetensors file.
    """
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
        parent: the folder that was trained.
        tensors: name → new content of the tensors that changed, each of the dtype and shape that it has in the parent.
        trainings: the documents of the trainings that followed on the parent, the last one that of the result.
        out: the folder; absent, empty, or with `replace` an earlier composition.
        replace: allow `out` to be an earlier composition.
        record: called when everything is written, just before the folder appears; an exception prevents that.
        progress: reports the bytes written.

    Raises:
        OutputError: `out` cannot be written to.
        StorageError: the disk is full or refuses.
        CheckpointError: the parent was changed during the training, or lacks such a tensor.
    """
    places = stored_tensors(parent)
    for name, source in tensors.items():
        _check_fits(parent, name, places.get(name), source)
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


def _check_fits(parent: ComposedFolder, name: str, place: Stored | None, source: ArraySource) -> None:
    if place is None or (NAMES.get(place.dtype), place.shape) != (source.dtype, source.shape):
        found = "no such tensor" if place is None else f"one of {NAMES.get(place.dtype)} {list(place.shape)}"
        raise CheckpointError(
            f"{parent.path}: tensor {name} of {source.dtype} {list(source.shape)} was trained, and it has {found}",
            "name the folder that was trained",
        )


def _copy(parent: ComposedFolder, name: str, target: Path, patches: Mapping[int, ArraySource], advance: Advance) -> str:
    """Copy a file with some tensors (offset → content) replaced, and return the digest of the copy.

    Tensors are read block by block, so that a file of any size is copied in little memory.
    """
    path, known = parent.path / name, parent.files[name]
    error = CheckpointError(f"{path} was changed during training", "compose it again, and train the new folder")
    size = path.stat().st_size
    before = TreeHash(path, size) if known.startswith(PREFIX) else hashlib.sha256()
    after = TreeHash(target, size) if name.endswith(".safetensors") else hashlib.sha256()

    def add(state: Any, data: bytes | memoryview) -> None:
        try:
            state.update(data)
        except CheckpointError as cause:  # no longer a safetensors file
            raise error from cause

    with path.open("rb") as source, target.open("wb") as copy:
        for count, patch in _parts(size, patches):
            new = iter(()) if patch is None else (block.data.cast("B") for block in patch.blocks())
            for data in _read(source, count):
                add(before, data)
                advance(len(data))
                if patch is None:
                    copy.write(data)
                    add(after, data)
            for part in new:
                copy.write(part)
                add(after, part)
        if source.read(1) or source.tell() != size or before.hexdigest() != known:
            raise error
    return after.hexdigest()


def _parts(size: int, patches: Mapping[int, ArraySource]) -> Iterator[tuple[int, ArraySource | None]]:
    """Yield (number of bytes, their new content or None) of the consecutive parts of a file of `size` bytes."""
    at = 0
    for begin, patch in sorted(patches.items(), key=lambda item: item[0]):
        yield begin - at, None
        yield patch.nbytes, patch
        at = begin + patch.nbytes
    yield size - at, None


def _read(file: BinaryIO, count: int) -> Iterator[bytes]:
    """Yield the next `count` bytes of a file, or fewer at its end."""
    while count and (data := file.read(min(CHUNK, count))):
        yield data
        count -= len(data)
