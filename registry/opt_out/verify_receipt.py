"""Checking a receipt: whether the registry still is what the receipt says, and folders hold nothing withdrawn."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from registry.composition.integrity import ComposedFolder
from registry.composition.manifest import CompositionManifest
from registry.errors import ConflictError, NotFoundError, RegError
from registry.io.model_folder import MARKER
from registry.names.reference import require_list
from registry.opt_out.receipt import Affected, Receipt, read_receipt, recompose
from registry.opt_out.withdraw import pushable
from registry.workspace import PathLike, Workspace
from store.catalog import CompositionRecord, VersionRecord

_OWN = ("mlp", "calibration")
"""Roles of arrays that are an expert's own: the trunk, a tokenizer, a scale may be anybody's."""

_COPY = "take the receipt as reg opt-out wrote it, and the registry that it is of"
"""What to do where the two do not fit each other."""


@dataclass
class ReceiptCheck:
    """What was found of a receipt.

    Attributes:
        receipt: the receipt.
        problems: what is not as it says, one line each; none means that all of it holds.
        remedies: what to do about the problems, one line each.
        notes: what came after it, and does not contradict it.
    """

    receipt: Receipt
    problems: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def tell(self, problem: str, remedy: str = _COPY) -> None:
        """Note a problem, and what to do about it."""
        self.problems.append(problem)
        if remedy not in self.remedies:
            self.remedies.append(remedy)


def verify_receipt(workspace: Workspace, file: PathLike, folders: Sequence[PathLike] = ()) -> ReceiptCheck:
    """Compare a receipt with the registry and with composed folders (arguments as `Registry.verify_receipt`).

    Raises:
        ConflictError: it is of another registry.
    """
    receipt = read_receipt(Path(file))
    paths = [Path(folder) for folder in require_list(folders, "folders")]
    workspace.check_owner()
    if receipt.registry != workspace.catalog.id:
        raise ConflictError(
            f"the receipt is of the registry {receipt.registry!r}, this one is {workspace.catalog.id}",
            "name the registry that it is of: --home DIR",
        )
    check = ReceiptCheck(receipt)
    known = {version.ref: version for version in workspace.versions(everything=True)}
    _versions(check, known)
    _log(workspace, check)
    _arrays(workspace, check, known)
    withdrawn = [known[one.ref] for one in receipt.versions if one.ref in known]
    _compositions(workspace, check, withdrawn)
    _pushes(workspace, check, withdrawn)
    for folder in paths:
        _folder(workspace, check, folder)
    return check


def _versions(check: ReceiptCheck, known: dict[str, VersionRecord]) -> None:
    if not check.receipt.versions:
        check.tell("the receipt names no version")
    for one in check.receipt.versions:
        found = known.get(one.ref)
        if found is None or found.digest != one.digest:
            there = f"no {one.ref}" if found is None else f"{one.ref} of content {found.digest[:12]}"
            said = f"{one.ref} of content {one.digest[:12]} was withdrawn"
            check.tell(f"the receipt says that {said}; the registry has {there}")
        elif found.state == "active":
            problem = f"{one.ref} is not withdrawn; the receipt says that it was, at {one.withdrawn_at}"
            check.tell(problem, _again(one.ref, purge=one.purged_at is not None))
        elif one.purged_at is not None and found.state != "purged":
            problem = f"{one.ref} is not purged; the receipt says that it was, at {one.purged_at}"
            check.tell(problem, _again(one.ref))
        elif found.withdrawn_at != one.withdrawn_at or one.purged_at not in (None, found.purged_at):
            check.tell(
                f"{one.ref} was withdrawn at {found.withdrawn_at} and purged at {found.purged_at}; the receipt says at "
                f"{one.withdrawn_at} and {one.purged_at}"
            )


def _again(ref: str, *, purge: bool = True) -> str:
    return f"repeat the opt-out: reg opt-out {ref}{' --purge' if purge else ''}"


def _log(workspace: Workspace, check: ReceiptCheck) -> None:
    receipt = check.receipt
    chain = workspace.catalog.chain()
    if chain.broken is not None:
        problem = f"the log: {chain.broken} does not follow from the one before: one was changed, or is missing"
        check.tell(problem, "put a backup of the catalog in its place, and hold the receipt against that")
        return
    events = workspace.catalog.events()
    head = next((event.id for event in events if event.digest == receipt.head), None)
    if head is None:
        check.tell(f"the log has no event of digest {receipt.head}: it is not the log that the receipt was made from")
        return
    told = {(event.action, event.subject, event.details.get("digest")) for event in events if event.id <= head}
    for one in receipt.versions:
        for action, at in (("opt-out", one.withdrawn_at), ("purge", one.purged_at)):
            if at is not None and (action, one.ref, one.digest) not in told:
                check.tell(f"the log tells of no {action} of {one.ref} before the receipt")


def _arrays(workspace: Workspace, check: ReceiptCheck, known: dict[str, VersionRecord]) -> None:
    present = {digest for digest in check.receipt.arrays if workspace.arrays.has(digest)}
    uses: dict[str, list[tuple[str, str, str]]] = {digest: [] for digest in sorted(present)}
    for version in known.values() if present else ():
        for link in workspace.catalog.arrays_of(version):
            if link.digest in present:
                uses[link.digest].append((version.ref, link.role, link.name))
    for digest, users in uses.items():
        if not users:
            check.tell(f"the deleted array {digest[:12]} is there, and no version needs it", "delete it: reg gc")
            continue
        ref, role, name = next((use for use in users if use[1] in _OWN), users[0])
        again = f"the deleted array {digest[:12]} is there again: {ref} needs it as {role} {name}"
        if role in _OWN:
            check.tell(again, _again(ref))
        else:
            check.notes.append(again)


def _compositions(workspace: Workspace, check: ReceiptCheck, withdrawn: list[VersionRecord]) -> None:
    made = {composition.digest: composition for composition in workspace.catalog.compositions(withdrawn)}
    listed = {one.digest: one for one in check.receipt.compositions}
    for digest in sorted({*made} - {*listed}):
        check.tell(f"composition {digest[:12]} was made from what was withdrawn, and is not in the receipt")
    for digest, one in listed.items():
        if digest not in made:
            check.tell(f"composition {digest[:12]} was not made from what was withdrawn")
            continue
        if lost := sorted(set(made[digest].folders) - set(one.folders)):
            check.tell(f"composition {digest[:12]} was written to {lost[0]}, which is not in the receipt")
        _recomposed(workspace, check, one, made[digest])


def _pushes(workspace: Workspace, check: ReceiptCheck, withdrawn: list[VersionRecord]) -> None:
    known = workspace.catalog.pushes(pushable(withdrawn, workspace.catalog.compositions(withdrawn)))
    for push in known:
        if push not in check.receipt.pushes:
            where = f"{push.repo}, {push.revision},"
            check.tell(f"{where} was pushed to with what was withdrawn, and is not in the receipt")


def _recomposed(workspace: Workspace, check: ReceiptCheck, one: Affected, made: CompositionRecord) -> None:
    if one.recomposed is None:
        return
    where, members = f"composition {one.digest[:12]}", one.recomposed.members
    withdrawn = {version.digest for version in check.receipt.versions}
    try:
        described = CompositionManifest.from_document(made.document, where)
        if withdrawn & {member.digest for member in members} or not set(members) <= set(described.members):
            check.tell(f"{where}, recomposed: its members are not those that remained")
        elif (digest := recompose(workspace, described, members)) != one.recomposed.digest:
            check.tell(f"{where}, recomposed, has digest {digest[:12]}, the receipt says {one.recomposed.digest[:12]}")
    except (ConflictError, NotFoundError) as error:
        check.notes.append(f"{where} can no longer be recomposed: {error.message}")
    except RegError as error:
        check.tell(f"{where} cannot be recomposed: {error.message}")


def _folder(workspace: Workspace, check: ReceiptCheck, folder: Path) -> None:
    try:
        composed = ComposedFolder.read(folder)
    except RegError as error:
        told = error.message if str(folder) in error.message else f"{folder}: {error.message}"
        check.tell(told, error.hint or f"name another folder than {folder}")
        return
    withdrawn = {one.digest: one.ref for one in reversed(check.receipt.versions)}
    manifest = composed.manifest
    for one in (*manifest.members, *([manifest.base] if manifest.base else [])):
        if one.digest in withdrawn:
            held = f"{folder} holds {withdrawn[one.digest]}: its {MARKER} names {one.name} {one.digest[:12]}"
            check.tell(held, f"delete {folder}, and every copy of it")
    for problem in composed.problems(workspace.progress):
        check.tell(problem, f"compose {folder} again; what was changed in it may be anything")
