"""Writer of a trained composition: the files of its parent, byte for byte, with new routers."""

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from registry.composition.cards.pushed import CARD
from registry.composition.first_format import is_weights
from registry.composition.manifest import folder_document
from registry.errors import CheckpointError
from registry.io.dtypes import NAMES
from registry.io.hashing import CHUNK
from registry.io.model_folder import MARKER, fresh_folder, json_file, write_files
from registry.io.torch_blocks import to_block, torch_dtype
from registry.io.tree_digest import PREFIX, TreeHash
from registry.progress import Advance, Progress
from registry.training.parent import Parent


def gate_bytes(parent: Parent, weights: Mapping[int, Any]) -> dict[int, bytes]:
    """Return layer → the bytes of its router, from float32 (E, H), rounded to the dtype of the parent's file."""
    return {
        layer: to_block(weights[layer].to(torch_dtype(NAMES[stored.dtype]))).tobytes()
        for layer, (_, stored) in parent.gates.items()
    }


def write_trained(
    parent: Parent,
    gates: Mapping[int, bytes],
    document: Mapping[str, Any],
    digest: str,
    out: Path,
    *,
    replace: bool,
    record: Callable[[], None],
    progress: Progress,
) -> None:
    """Write the trained composition to `out`, which appears whole or not at all.

    Args:
        parent: the parent of the training.
        gates: layer → the bytes of its router.
        document: the document of the trained composition.
        digest: the digest of the document.
        out: the folder; absent, empty, or with `replace` an earlier composition.
        replace: allow `out` to be an earlier composition.
        record: called when everything is written, just before the folder appears; an exception prevents that.
        progress: reports the bytes written.

    Raises:
        OutputError: `out` cannot be written to.
        StorageError: the disk is full or refuses.
        CheckpointError: the parent was changed during the training.
    """
    nbytes = parent.nbytes
    with fresh_folder(out, replace=replace, nbytes=nbytes) as folder:
        digests = {}
        with progress("writing", nbytes, "B") as advance:
            for name in parent.composed.files:
                patches = {
                    stored.begin: gates[layer]
                    for layer, (_, stored) in parent.gates.items()
                    if stored.file == parent.folder / name
                }
                if name != CARD:
                    digests[name] = _copy(parent, name, folder / name, patches, advance)
        if CARD in parent.composed.files:
            page = card(parent.composed.card.decode(), document, digest)
            digests |= write_files(folder, {CARD: page.encode()})
        write_files(folder, {MARKER: json_file(folder_document(document, digest, digests))})
        record()


def card(page: str, document: Mapping[str, Any], digest: str) -> str:
    """Return the parent's model card with the new digest and a note on the training."""
    training = document["training"]
    row = (
        f"| composition | `{digest}` |\n"
        f"| training | routers alone, {training['steps']} steps on data `{training['data']}`, "
        f"from composition `{document['parent']}` |\n"
    )
    page = page.replace("composed in closed form, without training, by", "composed in closed form by")
    page, count = re.subn(r"^\| composition \| `[0-9a-f]{64}` \|\n", lambda _: row, page, count=1, flags=re.MULTILINE)
    table = "" if count else f"\n| | |\n|---|---|\n{row}"
    return f"{page}{table}\nThe routers were then trained on the language-model loss; no other weight was.\n"


def _copy(parent: Parent, name: str, target: Path, patches: Mapping[int, bytes], advance: Advance) -> str:
    """Copy a file with some of its bytes (offset → bytes) replaced, and return the digest of the copy."""
    path, known, offset = parent.folder / name, parent.composed.files[name], 0
    error = CheckpointError(f"{path} was changed during training", "compose it again, and train the new folder")
    size = path.stat().st_size
    before = TreeHash(path, size) if known.startswith(PREFIX) else hashlib.sha256()
    after = TreeHash(target, size) if is_weights(name) else hashlib.sha256()
    with path.open("rb") as source, target.open("wb") as copy:
        while data := source.read(CHUNK):
            changed = bytearray(data)
            for begin, new in patches.items():
                first, last = max(begin, offset), min(begin + len(new), offset + len(data))
                if first < last:
                    changed[first - offset : last - offset] = new[first - begin : last - begin]
            copy.write(changed)
            try:
                before.update(data)
                after.update(changed)
            except CheckpointError as cause:  # no longer a safetensors file
                raise error from cause
            offset += len(data)
            advance(len(data))
    if offset != size or before.hexdigest() != known:
        raise error
    return after.hexdigest()
