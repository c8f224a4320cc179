"""Parent of a training: the composed folder whose weights are trained, its members, and the folder of the result."""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from registry.calibration import Calibration
from registry.checkpoint.model_files import Stored, weight_source
from registry.composition.manifest import COMPOSE_AGAIN, ComposedFolder
from registry.composition.trained import ALL, PROJECTORS, ROUTERS, trained_part
from registry.composition.trained_history import TrainedDocument, stored_tensors, write_trained
from registry.errors import CheckpointError, ConflictError, InvalidInputError, StorageError
from registry.io.dtypes import NAMES, WEIGHT_DTYPES
from registry.member import Member, copies_of, load_member
from registry.names.resolve import by_digest
from registry.runtime.gates import GATE, gates
from registry.training.training_windows import check_vocabulary
from registry.workspace import Workspace
from store.arrays import ArraySource, digest_of
from store.catalog import ArrayLink, VersionRecord
from store.digest import json_digest
from store.ownership import claim


@dataclass(frozen=True)
class Parent:
    """A composed folder and its stored tensors by name."""

    composed: ComposedFolder
    tensors: dict[str, Stored]

    @property
    def folder(self) -> Path:
        """Its path."""
        return self.composed.path

    @cached_property
    def gates(self) -> dict[int, tuple[str, Stored]]:
        """Layer → (tensor name, stored tensor) of its router."""
        found = {}
        for name, stored in self.tensors.items():
            if match := GATE.fullmatch(name.removesuffix(".weight").removesuffix(".layer")):
                found[int(match[1])] = (name, stored)
        return found

    def dtype_of(self, name: str) -> str:
        """Return the dtype of a tensor."""
        return NAMES[self.tensors[name].dtype]

    def source(self, name: str) -> ArraySource:
        """Return the content of a tensor."""
        return weight_source(name, self.tensors[name], str(self.folder))


def open_parent(workspace: Workspace, folder: Path, part: str) -> tuple[Parent, list[Member], list[VersionRecord]]:
    """Check the folder of a training; return the folder, its members, and all versions used.

    The members are in the order of the experts; versions are these and the base model, if it took part. `part` is what
    is to be trained, a key of `NAMED`.

    Raises:
        CheckpointError: `folder` was not composed by this program, or was changed since.
        NotFoundError: a member is not registered here.
        ConflictError: a member was opted out.
        InvalidInputError: it has no such part, or its routers read nothing of the stream: there is nothing to train.
    """
    workspace.check_owner()
    composed = ComposedFolder.read(folder)
    manifest = composed.manifest
    recipe = manifest.recipe
    if recipe.output.has_projectors and part not in (PROJECTORS, ALL):
        raise InvalidInputError(
            f"{folder} has members of several architectures: its projectors and its router train, or all weights, and "
            "nothing else of it",
            f"train these: reg train {shlex.quote(str(folder))} --train {PROJECTORS} --data FILE --out DIR; or give "
            f"--train {ALL}",
        )
    if not recipe.output.has_projectors and part == PROJECTORS:
        raise InvalidInputError(
            f"{folder} has no projectors: only members of several architectures have them",
            f"train another part: --train {ALL}",
        )
    if recipe.router_method is not None and not recipe.router_method.is_linear:
        raise InvalidInputError(
            f"{folder} has nothing to train: router method {recipe.router!r} reads how often experts use the tokens of "
            "the text so far, and nothing of the stream",
            "compose another folder to train: reg compose --experts … --router ridge --out DIR",
        )
    composed.check(workspace.progress)
    parent = Parent(composed, stored_tensors(composed))
    if part == ROUTERS and not parent.gates:
        raise InvalidInputError(
            f"{folder} is not a mixture of experts with routers",
            "compose one: reg compose --experts … --router ridge --out DIR",
        )
    for name, stored in parent.gates.values():
        if NAMES.get(stored.dtype) not in WEIGHT_DTYPES or len(stored.shape) != 2:
            raise CheckpointError(f"{stored.file}: {name} is not a router's weight", COMPOSE_AGAIN)
    holder = str(folder), composed.digest
    used = [by_digest(workspace.catalog, ref.name, ref.digest, *holder) for ref in manifest.versions]
    if manifest.from_base is not None:
        return parent, copies_of(load_member(workspace, used[0]), manifest.from_base), used
    return parent, [load_member(workspace, version) for version in used[: len(manifest.members)]], used


def check_copies_differ(workspace: Workspace, parent: Parent) -> None:
    """Raise InvalidInputError if the experts are equal copies of one base model, so that routers have nothing to learn.

    They are until a training of the folder's history has changed their MLPs.
    """
    content: Mapping[str, Any] | None = parent.composed.content
    if parent.composed.manifest.from_base is None:
        return
    while content is not None and "training" in content:
        if trained_part(content["training"]) != ROUTERS:
            return
        content = workspace.catalog.composition_document(content["parent"])
    if content is not None:  # the untrained mixture; None where the history is not in this registry
        raise InvalidInputError(
            f"{parent.folder} has copies of one base model as experts, which are equal until they are trained: it "
            "gives the same whichever its routers choose, so there is nothing that routers alone could learn",
            f"train the copies with them: reg train {shlex.quote(str(parent.folder))} --train {ALL} --data FILE "
            "--out DIR",
        )


def check_loaded(parent: Parent, model: Any, text: Calibration, members: int) -> None:
    """Check that the loaded routers are those of the folder, of so many members, and the model has every token."""
    loaded = {gate.layer: tuple(gate.weight.shape) for gate in gates(model)} if parent.gates else {}
    stored = {layer: tensor.shape for layer, (_, tensor) in parent.gates.items()}
    if loaded != stored or any(shape[0] != members for shape in loaded.values()):
        raise CheckpointError(
            f"{parent.folder}: its files hold routers of shapes {stored}, the model {loaded}, for {members} members",
            "compose it again: reg compose --experts … --out DIR",
        )
    check_vocabulary(text, model.get_input_embeddings().num_embeddings, str(parent.folder))


def keep_trained(
    workspace: Workspace,
    parent: Parent,
    used: Sequence[VersionRecord],
    tensors: Mapping[str, ArraySource],
    training: Mapping[str, Any],
    out: Path,
    *,
    replace: bool,
    record: bool,
) -> TrainedDocument:
    """Write a trained composition to `out`, store its tensors, and record it; return its document.

    Arrays are complete on disk before the catalog refers to them; a failure leaves none of them behind.

    Args:
        used: the versions that the parent was composed of.
        tensors: the tensors that changed, by name.
        training: what the document says of the training; of other weights than routers it names the tensors too.
        out: the folder; absent, empty, or with `replace` an earlier composition.
        record: store the tensors, and record the composition in the catalog.
    """
    catalog, composed = workspace.catalog, parent.composed
    digests = {name: digest_of(tensors[name]) for name in sorted(tensors)}
    named = {} if trained_part(training) == ROUTERS else {"tensors": digests}
    document = composed.document | {"parent": composed.digest, "training": dict(training) | named}
    trained = TrainedDocument(json_digest(document), document)

    def recorded() -> None:
        if not record:
            return
        with catalog.lock(f"storing what was trained into {out}", shared=workspace.arrays.concurrent_writers):
            claim(catalog, workspace.arrays)
            fresh = {digest for digest in digests.values() if not workspace.arrays.has(digest)}
            try:
                links = []
                with workspace.progress("storing", sum(source.nbytes for source in tensors.values()), "B") as advance:
                    for name, digest in digests.items():
                        source = tensors[name]
                        workspace.arrays.put(source, digest=digest)
                        links.append(ArrayLink("trained", name, digest, source.dtype, source.shape, source.nbytes))
                        advance(source.nbytes)
                catalog.record_composition(trained.digest, document, used, str(out), links)
            except BaseException:
                if not workspace.arrays.concurrent_writers:  # else another process may be about to use them
                    with suppress(ConflictError, StorageError), catalog.holding():
                        for digest in fresh:  # nothing refers to them: the registry's lock is held
                            workspace.arrays.delete(digest)
                raise

    write_trained(composed, tensors, [trained], out, replace=replace, record=recorded, progress=workspace.progress)
    if record:
        workspace.tell("compose", trained.digest)
    return trained
