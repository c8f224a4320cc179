"""Verification of a receipt: the registry still matches it, and folders contain nothing withdrawn."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from registry.checkpoint.adapter import HEADER
from registry.checkpoint.adapter_config import CONFIG
from registry.checkpoint.version_files import ADAPTER
from registry.composition.manifest import ComposedFolder, CompositionManifest
from registry.errors import ConflictError, NotFoundError, RegError
from registry.io.model_folder import MARKER
from registry.maintenance.verify import BROKEN
from registry.names.reference import require_list
from registry.names.resolve import ALL_STATES, version_of_content
from registry.opt_out.receipt import Affected, Receipt, plan_remaining, read_receipt
from registry.opt_out.withdraw import pushable
from registry.workspace import PathLike, Workspace
from store.catalog import CompositionRecord, VersionRecord

_OWN = ("mlp", ADAPTER, "calibration", "trained")
"""Roles of arrays that belong to one expert, or to compositions with it; a trunk or tokenizer may be of others."""

_ALIKE = (CONFIG, HEADER)
"""Names of arrays of adapters that others may have too."""

_COPY = "use the receipt as reg opt-out wrote it, and the registry that it belongs to"
_SINCE = (
    "if that is newer, and the version was withdrawn again, write a new receipt: reg opt-out VERSION --receipt FILE"
)
"""The remedy if receipt and registry do not match."""


@dataclass
class ReceiptCheck:
    """The result of verifying a receipt: a line for each contradiction, for each remedy, and for each later change."""

    receipt: Receipt
    problems: list[str] = field(default_factory=list)  # contradictions to the receipt; empty if it holds
    remedies: list[str] = field(default_factory=list)  # remedies of the problems
    notes: list[str] = field(default_factory=list)  # later changes that do not contradict the receipt

    def add(self, problem: str, remedy: str = _COPY) -> None:
        """Add a problem and its remedy."""
        self.problems.append(problem)
        if remedy not in self.remedies:
            self.remedies.append(remedy)


def verify_receipt(workspace: Workspace, file: PathLike, folders: Sequence[PathLike] = ()) -> ReceiptCheck:
    """Compare a receipt with registry and folders (as `Registry.verify_receipt`; ConflictError: another registry's)."""
    receipt = read_receipt(Path(file))
    paths = [Path(folder) for folder in require_list(folders, "folders")]
    workspace.check_owner()
    if receipt.registry != workspace.catalog.id:
        raise ConflictError(
            f"the receipt belongs to the registry {receipt.registry!r}, this one is {workspace.catalog.id}",
            "name the registry that it belongs to: --home DIR",
        )
    check = ReceiptCheck(receipt)
    known = {version.ref: version for version in workspace.catalog.versions(states=ALL_STATES)}
    _versions(check, known)
    _log(workspace, check)
    _arrays(workspace, check, known)
    withdrawn = [known[version.ref] for version in receipt.versions if version.ref in known]
    _compositions(workspace, check, withdrawn)
    for folder in paths:
        _folder(workspace, check, folder)
    return check


def _versions(check: ReceiptCheck, known: dict[str, VersionRecord]) -> None:
    if not check.receipt.versions:
        check.add("the receipt names no version")
    for withdrawn in check.receipt.versions:
        ref, version = withdrawn.ref, known.get(withdrawn.ref)
        if version is None or version.digest != withdrawn.digest:
            actual = f"no {ref}" if version is None else f"{ref} of content {version.digest[:12]}"
            expected = f"{ref} of content {withdrawn.digest[:12]} was withdrawn"
            check.add(f"the receipt says that {expected}; the registry has {actual}")
        elif version.state == "active":
            problem = f"{ref} is not withdrawn; the receipt says that it was, at {withdrawn.withdrawn_at}"
            check.add(problem, _repeat(ref, purge=withdrawn.purged_at is not None))
        elif withdrawn.purged_at is not None and version.state != "purged":
            problem = f"{ref} is not purged; the receipt says that it was, at {withdrawn.purged_at}"
            check.add(problem, _repeat(ref))
        elif version.withdrawn_at != withdrawn.withdrawn_at or withdrawn.purged_at not in (None, version.purged_at):
            check.add(
                f"{ref} was withdrawn at {version.withdrawn_at} and purged at {version.purged_at}; the receipt says at "
                f"{withdrawn.withdrawn_at} and {withdrawn.purged_at}"
            )


def _repeat(ref: str, *, purge: bool = True) -> str:
    return f"repeat the opt-out: reg opt-out {ref}{' --purge' if purge else ''}"


def _log(workspace: Workspace, check: ReceiptCheck) -> None:
    receipt = check.receipt
    chain = workspace.catalog.chain()
    if chain.broken is not None:
        problem = f"the log: {chain.broken} {BROKEN}"
        check.add(problem, "restore the catalog from a backup, and verify the receipt against that")
        return
    events = workspace.catalog.events()
    head = next((event.id for event in events if event.digest == receipt.head), None)
    if head is None:
        check.add(f"the log has no event of digest {receipt.head}: it is not the log that the receipt was made from")
        return
    logged = {(event.action, event.subject, event.details.get("digest")) for event in events if event.id <= head}
    for version in receipt.versions:
        for action, at in (("opt-out", version.withdrawn_at), ("purge", version.purged_at)):
            if at is not None and (action, version.ref, version.digest) not in logged:
                check.add(f"the log has no {action} of {version.ref} before the receipt")


def _arrays(workspace: Workspace, check: ReceiptCheck, known: dict[str, VersionRecord]) -> None:
    present = {digest for digest in check.receipt.arrays if workspace.arrays.has(digest)}
    uses: dict[str, list[tuple[str, str, str]]] = {digest: [] for digest in sorted(present)}
    for version in known.values() if present else ():
        for link in workspace.catalog.arrays_of(version):
            if link.digest in present:
                role = "file" if link.name in _ALIKE else link.role
                uses[link.digest].append((version.ref, role, link.name))
    withdrawn = {version.digest for version in check.receipt.versions}
    for composition in workspace.catalog.compositions() if present else ():
        active = [ref for ref in composition.members if known[ref].state == "active"]
        ref = next((ref for ref in active if known[ref].digest in withdrawn), composition.members[0])
        for link in workspace.catalog.trained_arrays(composition.digest):
            if link.digest in present:
                uses[link.digest].append((ref, link.role, link.name))
    again: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for digest, users in uses.items():
        if not users:
            check.add(f"the deleted array {digest[:12]} exists, and no version uses it", "delete it: reg gc")
            continue
        ref, role, name = next((use for use in users if use[1] in _OWN), users[0])
        again.setdefault((ref, role), []).append((digest, name))
    for (ref, role), arrays in again.items():
        digest, name = arrays[0]
        problem = f"the deleted array {digest[:12]} exists again: {ref} uses it as {role} {name}"
        if len(arrays) > 1:
            problem = f"{len(arrays)} deleted arrays exist again, such as {digest[:12]}: "
            problem += f"{ref} uses them as {role}, such as {name}"
        if role in _OWN:
            check.add(problem, f"{_repeat(ref)}; if it was registered again on purpose, the receipt no longer applies")
        else:
            check.notes.append(problem)


def _compositions(workspace: Workspace, check: ReceiptCheck, withdrawn: list[VersionRecord]) -> None:
    records = {composition.digest: composition for composition in workspace.catalog.compositions(withdrawn)}
    affected = {composition.digest: composition for composition in check.receipt.compositions}
    for digest in sorted({*records} - {*affected}):
        check.add(f"composition {digest[:12]} was made from withdrawn versions, and is not in the receipt", _SINCE)
    for digest, composition in affected.items():
        if digest not in records:
            check.add(f"composition {digest[:12]} was not made from withdrawn versions")
            continue
        if unlisted := sorted(set(records[digest].folders) - set(composition.folders)):
            check.add(f"composition {digest[:12]} was written to {unlisted[0]}, which is not in the receipt", _SINCE)
        _recomposed(workspace, check, composition, records[digest])
    for push in workspace.catalog.pushes(pushable(withdrawn, records.values())):
        if push not in check.receipt.pushes:
            check.add(
                f"withdrawn versions were pushed to {push.repo}, {push.revision}, which is not in the receipt", _SINCE
            )


def _recomposed(workspace: Workspace, check: ReceiptCheck, affected: Affected, record: CompositionRecord) -> None:
    expected = affected.recomposed
    if expected is None:
        return
    label, members = f"composition {affected.digest[:12]}", expected.members
    withdrawn = {version.digest for version in check.receipt.versions}
    try:
        manifest = CompositionManifest.from_document(record.document, label)
        if withdrawn & {member.digest for member in members} or not set(members) <= set(manifest.members):
            check.add(f"{label}, recomposed: its members are not the remaining ones")
        elif (digest := plan_remaining(workspace, manifest, members).digest) != expected.digest:
            check.add(f"{label}, recomposed, has digest {digest[:12]}, the receipt says {expected.digest[:12]}")
    except (ConflictError, NotFoundError) as error:
        check.notes.append(f"{label} can no longer be recomposed: {error.message}")
    except RegError as error:
        check.add(f"{label} cannot be recomposed: {error.message}")


def _folder(workspace: Workspace, check: ReceiptCheck, folder: Path) -> None:
    try:
        composed = ComposedFolder.read(folder)
    except RegError as error:
        problem = error.message if str(folder) in error.message else f"{folder}: {error.message}"
        check.add(problem, error.hint or f"name another folder than {folder}")
        return
    withdrawn = {version.digest: version.ref for version in reversed(check.receipt.versions)}
    for member in composed.manifest.versions:
        if member.digest in withdrawn:
            version = version_of_content(workspace.catalog, member.name, member.digest, composed.digest)
            ref = withdrawn[member.digest] if version is None else version.ref
            receipts = {version.ref for version in check.receipt.versions if version.digest == member.digest}
            same = "" if ref in receipts else f", the content of {withdrawn[member.digest]} registered again"
            problem = f"{folder} holds {ref}{same}: its {MARKER} names {member.name} {member.digest[:12]}"
            check.add(problem, f"delete {folder}, and every copy of it")
    for problem in composed.problems(workspace.progress):
        check.add(problem, f"compose {folder} again; the change may affect anything in it")
