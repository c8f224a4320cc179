"""Receipts of opt-outs: the versions withdrawn, the data deleted, and the copies that are out of reach.

A receipt contains the digest of the last event of the log, which covers all events before it.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from registry.composition.compose import plan_composition
from registry.composition.manifest import CompositionManifest, VersionRef
from registry.composition.plan import Plan
from registry.composition.recipe.recipe import Recipe
from registry.errors import CheckpointError, InvalidInputError, OutputError, RegError, StorageError
from registry.io.disk import atomic_file, is_at, try_lock
from registry.io.untrusted import DIGEST, LIST, OBJECT, TEXT, WHOLE, check_format, fields, list_of, maybe, read_json
from registry.names.reference import Reference
from registry.names.resolve import by_digest
from registry.opt_out.withdraw import OptOut, check_new_receipt, check_receipt
from registry.workspace import Workspace
from store.catalog import CompositionRecord, PushRecord, VersionRecord

FORMAT = 1
STATEMENT, PREDICATE = "https://in-toto.io/Statement/v1", f"urn:expert-registry:opt-out-receipt:v{FORMAT}"
"""What an in-toto Statement is, and what this one states."""
NOT_ERASED = (
    "copies that were made of these folders, of what was pushed, folders that reg export wrote, and backups: the "
    "registry does not know of them. The log keeps names (also those of aliases and of these folders), version "
    "numbers, digests and times; compositions keep their recipes"
)


@dataclass(frozen=True)
class Withdrawn:
    """A version that was opted out: reference, content digest, time of withdrawal, and time of purge."""

    ref: str
    digest: str
    withdrawn_at: str
    purged_at: str | None


@dataclass(frozen=True)
class Recomposed:
    """The composition of the remaining members by the same recipe."""

    digest: str
    members: tuple[VersionRef, ...]


@dataclass(frozen=True)
class Affected:
    """A composition that a withdrawn version was in, and the folders that contain the version until they are deleted.

    `recomposed` is the composition without it; None if no member remains or it cannot be composed.
    """

    digest: str
    folders: tuple[str, ...]
    recomposed: Recomposed | None
    why: str | None


@dataclass(frozen=True)
class Shared:
    """An array that stays, and the versions and trained compositions that use it."""

    digest: str
    versions: tuple[str, ...]


@dataclass(frozen=True)
class Receipt:
    """The receipt of an opt-out.

    Attributes:
        arrays: digests of the deleted arrays.
        shared: their arrays that stay.
        remains: one line for each file that could not be deleted yet, and for old versions that a bucket keeps.
        pushes: pushes to the Hub of the versions, and of compositions made from them.
        trained_together: versions that were active and whose weights were trained together with any of them.
        database: where the catalog's deleted rows may be that the registry cannot reach; None if nowhere.
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
    trained_together: tuple[str, ...] = ()
    database: str | None = None

    @property
    def folders(self) -> list[str]:
        """All folders that a withdrawn version was written to."""
        return list(dict.fromkeys(folder for composition in self.compositions for folder in composition.folders))

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the receipt."""
        return {
            "format": FORMAT,
            "registry": self.registry,
            "versions": [vars(version) for version in self.versions],
            "compositions": [asdict(composition) for composition in self.compositions],
            "deleted": {"arrays": self.arrays, "bytes": self.nbytes},
            "shared": [vars(array) for array in self.shared],
            "not_erased": {
                "folders": self.folders,
                "pushed": [*map(vars, self.pushes)],
                "copies": NOT_ERASED,
                "remains": self.remains,
                **({"trained_together": self.trained_together} if self.trained_together else {}),
                **({"database": self.database} if self.database else {}),
            },
            "head": self.head,
        }

    def statement(self) -> dict[str, Any]:
        """Return the receipt as an in-toto Statement about the withdrawn versions, by content digest."""
        subject = [{"name": version.ref, "digest": {"sha256": version.digest}} for version in self.versions]
        return {"_type": STATEMENT, "subject": subject, "predicateType": PREDICATE, "predicate": self.document()}

    @classmethod
    def from_document(cls, document: object, label: str) -> "Receipt":
        """Parse an untrusted document (CheckpointError: it is no receipt; InvalidInputError: a bad reference)."""
        kinds = {"format": WHOLE, "registry": TEXT, "versions": LIST, "compositions": LIST, "deleted": OBJECT}
        values = fields(document, kinds | {"shared": LIST, "not_erased": OBJECT, "head": DIGEST}, label)
        check_format(values, FORMAT, label, "use the version of the program that wrote it")
        deleted = fields(values["deleted"], {"arrays": list_of(DIGEST), "bytes": WHOLE}, f"{label}, deleted")
        kinds = {"folders": list_of(TEXT), "pushed": LIST, "copies": TEXT, "remains": list_of(TEXT)}
        kinds |= {"trained_together": list_of(TEXT), "database": TEXT}
        optional = ("pushed", "remains", "trained_together", "database")
        not_erased = fields(values["not_erased"], kinds, f"{label}, not_erased", optional=optional)
        kinds = {"digest": DIGEST, "versions": list_of(TEXT)}
        shared = [fields(array, kinds, f"{label}, shared") for array in values["shared"]]
        kinds = {"repo": TEXT, "revision": TEXT, "endpoint": TEXT, "commit": maybe(TEXT)}
        pushes = [fields(push, kinds, f"{label}, pushed") for push in not_erased.get("pushed", ())]
        return cls(
            values["registry"],
            tuple(_withdrawn(version, f"{label}, versions") for version in values["versions"]),
            tuple(_affected(composition, f"{label}, compositions") for composition in values["compositions"]),
            tuple(deleted["arrays"]),
            deleted["bytes"],
            tuple(Shared(array["digest"], tuple(array["versions"])) for array in shared),
            values["head"],
            tuple(not_erased.get("remains", ())),
            tuple(PushRecord(**push) for push in pushes),
            tuple(not_erased.get("trained_together", ())),
            not_erased.get("database"),
        )


def make_receipt(workspace: Workspace, result: OptOut) -> Receipt:
    """Return the receipt of an opt-out that has just ended; the caller holds the registry's lock.

    Deleted arrays are read from the log too, so that the receipt of a repeated opt-out includes those of the
    interrupted one.
    """
    catalog = workspace.catalog
    deleted, shared = _deleted_by_log(workspace, result)
    in_log = sum(deleted.get(digest, 0) for digest in result.deleted_digests)
    return Receipt(
        catalog.id,
        tuple(
            Withdrawn(version.ref, version.digest, str(version.withdrawn_at), version.purged_at)
            for version in result.versions
        ),
        tuple(_recomposed_of(workspace, composition) for composition in result.compositions),
        tuple(sorted({*deleted, *result.deleted_digests})),
        sum(deleted.values()) + max(0, result.deleted_bytes - in_log),
        tuple(Shared(digest, tuple(catalog.users_of(digest))) for digest in sorted({*shared, *result.shared_digests})),
        catalog.chain().head,
        (*result.remains, *result.old_versions),
        result.pushes,
        result.trained_together,
        result.beyond,
    )


def plan_remaining(workspace: Workspace, manifest: CompositionManifest, members: Sequence[VersionRef]) -> Plan:
    """Return the plan of composing `members`, a subset of another composition's, by its recipe.

    top_k is reduced to the number of members if it is larger. No weights are read.

    Raises:
        NotFoundError, ConflictError: a member is not registered here; a member was opted out.
        InvalidInputError: the members cannot be composed.
    """
    if manifest.parent is not None:
        raise InvalidInputError(
            "its weights were trained with all members together, and no composition of the others has them", None
        )
    copies, base = manifest.from_base, manifest.base
    if copies is not None and list(members) != list(manifest.members):
        raise InvalidInputError("its experts are copies of one base model, which leave together", None)
    if manifest.recipe.fit and list(members) != list(manifest.members):
        raise InvalidInputError(
            "its coefficients were fitted for all members together, and those of the others must be fitted again", None
        )
    manifest.check_makeable()
    names = [member.name for member in members]
    registered = [*(() if copies is not None else members), *((base,) if base is not None else ())]
    refs = [by_digest(workspace.catalog, one.name, one.digest, "it").ref for one in registered]
    base_ref = None if base is None else refs.pop()
    recipe: Recipe = manifest.recipe.output.without(manifest.recipe, names)
    return plan_composition(workspace, refs, recipe, base=base_ref, from_base=copies)


def read_receipt(path: Path) -> Receipt:
    """Return the receipt in a file (errors as `check_receipt` and `Receipt.from_document`)."""
    check_receipt(path)
    return Receipt.from_document(read_json(path), str(path))


@contextmanager
def receipt_file(path: Path, ref: str) -> Iterator[Callable[[Receipt], None]]:
    """Reserve the file for the receipt of opting `ref` out; yield the function that writes it.

    Raises OutputError if the file exists or its folder does not, and StorageError if it cannot be written.
    """
    path = path.absolute()
    check_new_receipt(path)
    fresh = path.with_name(f".{path.name}.partial")
    try:
        reserved = fresh.open("ab")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", "choose another --receipt") from error

    def write(receipt: Receipt) -> None:
        try:
            with atomic_file(path, fresh.name) as file:
                file.write_text(json.dumps(receipt.document(), indent=2, sort_keys=True) + "\n", encoding="ascii")
        except OSError as error:
            raise StorageError(
                f"{ref} was opted out, but its receipt {path} cannot be written: {error.strerror}",
                f"free some space, then write it again: reg opt-out {ref} --receipt FILE",
            ) from error

    with reserved:
        try:
            # Another command may have just ended and deleted it.
            is_held = try_lock(reserved.fileno()) and is_at(reserved.fileno(), fresh)
        except OSError as error:
            raise StorageError(f"{path} cannot be locked: {error.strerror}", "choose another --receipt") from error
        if not is_held:
            raise OutputError(
                f"another command is writing {path}, and receipts are never overwritten", "choose another --receipt"
            )
        check_new_receipt(path)
        try:
            yield write
        finally:
            fresh.unlink(missing_ok=True)


def remaining(versions: Iterable[VersionRecord], manifest: CompositionManifest) -> list[VersionRef]:
    """Return the members of a composition that are still active."""
    active = {(version.name, version.digest) for version in versions if version.state == "active"}
    if manifest.from_base is not None:
        return list(manifest.members) if {(one.name, one.digest) for one in manifest.versions} <= active else []
    return [member for member in manifest.members if (member.name, member.digest) in active]


def _deleted_by_log(workspace: Workspace, result: OptOut) -> tuple[dict[str, int], set[str]]:
    """Return the arrays of logged purges: those deleted and unused since (digest → bytes), and those that stayed."""
    deleted: dict[str, int] = {}
    shared: set[str] = set()
    for version in result.versions:
        for event in workspace.catalog.events(version.ref):
            if event.action == "purge":
                deleted |= event.details.get("deleted", {})
                shared |= set(event.details.get("shared", ()))
    needed = workspace.catalog.referenced()
    return {digest: nbytes for digest, nbytes in deleted.items() if digest not in needed}, shared & needed


def _recomposed_of(workspace: Workspace, composition: CompositionRecord) -> Affected:
    digest, folders = composition.digest, composition.folders
    try:
        manifest = CompositionManifest.from_document(composition.document, f"composition {digest[:12]}")
        members = remaining(workspace.versions(), manifest)
        if not members:
            return Affected(digest, folders, None, "no member remains")
        plan = plan_remaining(workspace, manifest, members)
        return Affected(digest, folders, Recomposed(plan.digest, tuple(members)), None)
    except RegError as error:
        return Affected(digest, folders, None, error.message)


def _withdrawn(document: object, label: str) -> Withdrawn:
    kinds = {"ref": TEXT, "digest": DIGEST, "withdrawn_at": TEXT, "purged_at": maybe(TEXT)}
    values = fields(document, kinds, label)
    if Reference.parse(values["ref"]).number is None:
        raise CheckpointError(f"{label}: {values['ref']} is not of the form NAME@NUMBER", "copy the file again")
    return Withdrawn(**values)


def _affected(document: object, label: str) -> Affected:
    kinds = {"digest": DIGEST, "folders": list_of(TEXT), "recomposed": maybe(OBJECT), "why": maybe(TEXT)}
    values = fields(document, kinds, label)
    recomposed = None
    if values["recomposed"] is not None:
        recomposed_values = fields(values["recomposed"], {"digest": DIGEST, "members": LIST}, f"{label}, recomposed")
        members = (VersionRef.from_document(member, f"{label}, recomposed") for member in recomposed_values["members"])
        recomposed = Recomposed(recomposed_values["digest"], tuple(members))
    return Affected(values["digest"], tuple(values["folders"]), recomposed, values["why"])
