"""Receipts: what an opt-out withdrew and deleted, what follows from it, and what it could not reach.

A receipt stands on the log: it names the digest of the last event, which is taken over all events before it.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from registry.composition.compose import plan_composition
from registry.composition.ensemble.recipe import EnsembleRecipe
from registry.composition.manifest import CompositionManifest, VersionRef
from registry.composition.recipe import Recipe
from registry.errors import CheckpointError, InvalidInputError, NotFoundError, OutputError, RegError, StorageError
from registry.io.atomic import atomic_file
from registry.io.file_lock import try_lock
from registry.io.files import read_json
from registry.io.schema import DIGEST, LIST, OBJECT, TEXT, WHOLE, fields, list_of, maybe
from registry.names.reference import Reference
from registry.names.resolve import by_digest
from registry.opt_out.withdraw import OptOut
from registry.workspace import Workspace
from store.catalog import CompositionRecord, PushRecord, VersionRecord

FORMAT = 1
NOT_ERASED = (
    "copies that were made of these folders, of what was pushed, folders that reg export wrote, and backups: the "
    "registry does not know of them. The log keeps names (also those of aliases and of these folders), version "
    "numbers, digests and times; compositions keep their recipes"
)


@dataclass(frozen=True)
class Withdrawn:
    """A version that was opted out: `math@2`, its content digest, when, and when its arrays were deleted."""

    ref: str
    digest: str
    withdrawn_at: str
    purged_at: str | None


@dataclass(frozen=True)
class Recomposed:
    """What the same recipe gives of those who remain: its digest, and who they are."""

    digest: str
    members: tuple[VersionRef, ...]


@dataclass(frozen=True)
class Affected:
    """A composition that a withdrawn version was in.

    Attributes:
        digest: its digest.
        folders: those that it was written to, which hold the version until they are deleted.
        recomposed: what it is without; None where nothing remains or it cannot be composed.
        why: why it cannot.
    """

    digest: str
    folders: tuple[str, ...]
    recomposed: Recomposed | None
    why: str | None


@dataclass(frozen=True)
class Shared:
    """An array that stays, and the versions that need it."""

    digest: str
    versions: tuple[str, ...]


@dataclass(frozen=True)
class Receipt:
    """The receipt of an opt-out.

    Attributes:
        registry: the registry's id.
        versions: those withdrawn.
        compositions: those ever made from any of them.
        arrays: digests of the arrays that were deleted.
        nbytes: what they took on disk.
        shared: arrays of theirs that stay.
        head: the digest of the last event of the log.
        remains: what could not be deleted yet, one line each: what other processes held.
        pushes: where any of it was pushed to on the Hub.
    """

    registry: str
    versions: tuple[Withdrawn, ...]
    compositions: tuple[Affected, ...]
    arrays: tuple[str, ...]
    nbytes: int
    shared: tuple[Shared, ...]
    head: str
    remains: tuple[str, ...] = ()
    pushes: tuple[PushRecord, ...] = ()

    @property
    def folders(self) -> list[str]:
        """Every folder that a withdrawn version was written to."""
        return list(dict.fromkeys(folder for composition in self.compositions for folder in composition.folders))

    def document(self) -> dict[str, Any]:
        """Return it as its file holds it."""
        return {
            "format": FORMAT,
            "registry": self.registry,
            "versions": [vars(version) for version in self.versions],
            "compositions": [_composition_document(composition) for composition in self.compositions],
            "deleted": {"arrays": list(self.arrays), "bytes": self.nbytes},
            "shared": [{"digest": one.digest, "versions": list(one.versions)} for one in self.shared],
            "not_erased": {
                "folders": self.folders,
                "pushed": [*map(vars, self.pushes)],
                "copies": NOT_ERASED,
                "remains": list(self.remains),
            },
            "head": self.head,
        }

    @classmethod
    def from_document(cls, document: object, where: str) -> "Receipt":
        """Read a receipt that may come from anywhere.

        Raises:
            CheckpointError: it is none.
            InvalidInputError: a name in it cannot be one.
        """
        kinds = {"format": WHOLE, "registry": TEXT, "versions": LIST, "compositions": LIST, "deleted": OBJECT}
        given = fields(document, kinds | {"shared": LIST, "not_erased": OBJECT, "head": DIGEST}, where)
        if given["format"] != FORMAT:
            raise CheckpointError(
                f"{where} has format {given['format']}, this program reads {FORMAT}",
                "use the program that it was made with",
            )
        deleted = fields(given["deleted"], {"arrays": list_of(DIGEST), "bytes": WHOLE}, f"{where}, deleted")
        kinds = {"folders": list_of(TEXT), "pushed": LIST, "copies": TEXT, "remains": list_of(TEXT)}
        kept = fields(given["not_erased"], kinds, f"{where}, not_erased", optional=("pushed", "remains"))
        shared = [
            fields(one, {"digest": DIGEST, "versions": list_of(TEXT)}, f"{where}, shared") for one in given["shared"]
        ]
        return cls(
            given["registry"],
            tuple(_withdrawn(one, f"{where}, versions") for one in given["versions"]),
            tuple(_affected(one, f"{where}, compositions") for one in given["compositions"]),
            tuple(deleted["arrays"]),
            deleted["bytes"],
            tuple(Shared(one["digest"], tuple(one["versions"])) for one in shared),
            given["head"],
            tuple(kept.get("remains", ())),
            tuple(_push(one, f"{where}, pushed") for one in kept.get("pushed", ())),
        )


def make_receipt(workspace: Workspace, done: OptOut) -> Receipt:
    """Return the receipt of an opt-out that has just been done; the caller holds the registry's lock.

    What was deleted is told by the log too, so that an opt-out that was interrupted, and is repeated, has all of it.
    """
    catalog = workspace.catalog
    deleted, shared = _deleted_by_log(workspace, done)
    return Receipt(
        catalog.id,
        tuple(Withdrawn(v.ref, v.digest, str(v.withdrawn_at), v.purged_at) for v in done.versions),
        tuple(_recomposed_of(workspace, composition) for composition in done.compositions),
        tuple(sorted({*deleted, *done.deleted_digests})),
        sum(deleted.values()) + max(0, done.deleted_bytes - sum(deleted.get(one, 0) for one in done.deleted_digests)),
        tuple(Shared(digest, tuple(catalog.users_of(digest))) for digest in sorted({*shared, *done.shared_digests})),
        catalog.chain().head,
        done.remains,
        done.pushes,
    )


def recompose(workspace: Workspace, described: CompositionManifest, members: Sequence[VersionRef]) -> str:
    """Return the digest of the composition of some of the `members` of another, by its recipe.

    top_k is at most their number. No weight is read.

    Raises:
        NotFoundError, ConflictError: one is not registered here, or was opted out.
        InvalidInputError: they cannot be composed.
    """
    if described.parent is not None:
        raise InvalidInputError("its routers were trained on text, which is not done again", None)
    names = [member.name for member in members]
    refs = [by_digest(workspace.catalog, one.name, one.digest, "it").ref for one in members]
    known = described.base
    base = None if known is None else by_digest(workspace.catalog, known.name, known.digest, "it").ref
    top_k = described.recipe.top_k
    recipe: Recipe | EnsembleRecipe = replace(
        described.recipe,
        top_k=None if top_k is None else min(top_k, len(names)),
        weights={name: weight for name, weight in described.recipe.weights.items() if name in names},
    )
    if isinstance(recipe, Recipe):
        recipe = replace(recipe, bias={name: bias for name, bias in recipe.bias.items() if name in names})
    return plan_composition(workspace, refs, recipe, base=base).digest


def read_receipt(path: Path) -> Receipt:
    """Return the receipt in a file (errors as `Receipt.from_document`).

    Raises:
        NotFoundError: there is no such file.
    """
    if not path.is_file():
        raise NotFoundError(f"{path} is not a file", "name the file that reg opt-out --receipt wrote")
    return Receipt.from_document(read_json(path), str(path))


@contextmanager
def receipt_file(path: Path, ref: str) -> Iterator[Callable[[Receipt], None]]:
    """Make sure of a place for the receipt of opting `ref` out, and give what writes it there.

    Raises:
        OutputError: something is there already, or there is no such folder.
        StorageError: it cannot be written.
    """
    path = path.absolute()
    if path.exists() or path.is_symlink():
        raise OutputError(f"{path} exists, and a receipt replaces nothing", "choose another --receipt")
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent} is not a folder", "make it, or choose another --receipt")
    fresh = path.with_name(f".{path.name}.partial")
    try:
        held = os.open(fresh, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", "choose another --receipt") from error

    def write(receipt: Receipt) -> None:
        try:
            with atomic_file(path, fresh.name) as file:
                file.write_text(json.dumps(receipt.document(), indent=2, sort_keys=True) + "\n", encoding="ascii")
        except OSError as error:
            raise StorageError(
                f"{ref} was opted out, and its receipt {path} cannot be written: {error.strerror}",
                f"free some space, then write it again: reg opt-out {ref} --receipt FILE",
            ) from error

    try:
        if not try_lock(held) or not _is_at(held, fresh):  # the other may have just ended, and deleted it
            raise OutputError(
                f"another command is writing {path}, and a receipt replaces nothing", "choose another --receipt"
            )
        if path.exists():
            raise OutputError(f"{path} exists, and a receipt replaces nothing", "choose another --receipt")
        try:
            yield write
        finally:
            fresh.unlink(missing_ok=True)
    finally:
        os.close(held)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def remaining(versions: Iterable[VersionRecord], described: CompositionManifest) -> list[VersionRef]:
    """Return the members of a composition that are still active."""
    active = {(version.name, version.digest) for version in versions if version.state == "active"}
    return [member for member in described.members if (member.name, member.digest) in active]


def _deleted_by_log(workspace: Workspace, done: OptOut) -> tuple[dict[str, int], set[str]]:
    """Return what the log says of purges: what was deleted and is not needed again, digest → bytes; and what stayed."""
    deleted: dict[str, int] = {}
    stayed: set[str] = set()
    for version in done.versions:
        for event in workspace.catalog.events(version.ref):
            if event.action == "purge":
                deleted |= event.details.get("deleted", {})
                stayed |= set(event.details.get("shared", ()))
    needed = workspace.catalog.referenced()
    return {digest: nbytes for digest, nbytes in deleted.items() if digest not in needed}, stayed & needed


def _recomposed_of(workspace: Workspace, composition: CompositionRecord) -> Affected:
    digest, folders = composition.digest, composition.folders
    try:
        described = CompositionManifest.from_document(composition.document, f"composition {digest[:12]}")
        left = remaining(workspace.versions(), described)
        if not left:
            return Affected(digest, folders, None, "no member remains")
        return Affected(digest, folders, Recomposed(recompose(workspace, described, left), tuple(left)), None)
    except RegError as error:
        return Affected(digest, folders, None, error.message)


def _composition_document(composition: Affected) -> dict[str, Any]:
    made = composition.recomposed
    return {
        "digest": composition.digest,
        "folders": list(composition.folders),
        "recomposed": made and {"digest": made.digest, "members": [vars(member) for member in made.members]},
        "why": composition.why,
    }


def _withdrawn(document: object, where: str) -> Withdrawn:
    kinds = {"ref": TEXT, "digest": DIGEST, "withdrawn_at": TEXT, "purged_at": maybe(TEXT)}
    given = fields(document, kinds, where)
    if Reference.parse(given["ref"]).number is None:
        raise CheckpointError(f"{where}: {given['ref']} is not of the form NAME@NUMBER", "copy the file again")
    return Withdrawn(**given)


def _push(document: object, where: str) -> PushRecord:
    kinds = {"repo": TEXT, "revision": TEXT, "endpoint": TEXT, "commit": maybe(TEXT)}
    return PushRecord(**fields(document, kinds, where))


def _affected(document: object, where: str) -> Affected:
    kinds = {"digest": DIGEST, "folders": list_of(TEXT), "recomposed": maybe(OBJECT), "why": maybe(TEXT)}
    given = fields(document, kinds, where)
    made = None
    if given["recomposed"] is not None:
        found = fields(given["recomposed"], {"digest": DIGEST, "members": LIST}, f"{where}, recomposed")
        members = (VersionRef.from_document(one, f"{where}, recomposed") for one in found["members"])
        made = Recomposed(found["digest"], tuple(members))
    return Affected(given["digest"], tuple(given["folders"]), made, given["why"])
