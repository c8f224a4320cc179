"""Storing of a training's result: its folder, the tensors that changed as arrays, and the composition that has them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from registry.composition.trained_history import TrainedDocument, write_trained
from registry.errors import ConflictError, StorageError
from registry.training.parent import Parent
from registry.workspace import Workspace
from store.arrays import ArraySource, digest_of
from store.catalog import ArrayLink, VersionRecord
from store.digest import json_digest
from store.ownership import claim


def keep_trained(
    workspace: Workspace,
    parent: Parent,
    used: Sequence[VersionRecord],
    tensors: Mapping[str, ArraySource],
    training: Callable[[dict[str, str]], dict[str, Any]],
    out: Path,
    *,
    replace: bool,
    record: bool,
) -> TrainedDocument:
    """Write a trained composition to `out`, store its tensors, and record it; return its document.

    Arrays are complete on disk before the catalog refers to them; a failure leaves none of them behind.

    Args:
        workspace: the registry.
        parent: the folder that was trained.
        used: the versions that it was composed of.
        tensors: name → content of the tensors that changed.
        training: returns what the document says of the training, from name → array digest of the tensors.
        out: the folder; absent, empty, or with `replace` an earlier composition.
        replace: allow `out` to be an earlier composition.
        record: store the tensors, and record the composition in the catalog.

    Raises:
        ConflictError: a version was opted out in the meantime.
        StorageError: the disk is full or refuses.
    """
    catalog, composed = workspace.catalog, parent.composed
    digests = {name: digest_of(tensors[name]) for name in sorted(tensors)}
    document = composed.document | {"parent": composed.digest, "training": training(digests)}
    trained = TrainedDocument(json_digest(document), document)

    def recorded() -> None:
        if not record:
            return
        with catalog.lock(f"storing what was trained into {out}", shared=workspace.arrays.concurrent_writers):
            claim(catalog, workspace.arrays)
            fresh = {digest for digest in digests.values() if not workspace.arrays.has(digest)}
            try:
                links = _store(workspace, tensors, digests)
                catalog.record_composition(trained.digest, document, used, str(out), links)
            except BaseException:
                if not workspace.arrays.concurrent_writers:  # else another process may be about to use them
                    with suppress(ConflictError, StorageError), catalog.holding():
                        for digest in fresh:  # nothing refers to them: the registry's lock is held
                            workspace.arrays.delete(digest)
                raise

    write_trained(composed, tensors, [trained], out, replace=replace, record=recorded, progress=workspace.progress)
    return trained


def _store(workspace: Workspace, tensors: Mapping[str, ArraySource], digests: Mapping[str, str]) -> list[ArrayLink]:
    links = []
    with workspace.progress("storing", sum(source.nbytes for source in tensors.values()), "B") as advance:
        for name, digest in digests.items():
            source = tensors[name]
            workspace.arrays.put(source, digest=digest)
            links.append(ArrayLink("trained", name, digest, source.dtype, source.shape, source.nbytes))
            advance(source.nbytes)
    return links
