"""Checking a receipt: whether the registry still is what the receipt says, and folders hold nothing withdrawn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from registry.composing.description import Description
from registry.composing.folder import MARKER
from registry.errors import ConflictError, NotFoundError, RegError
from registry.intact import problems_of
from registry.receipts import Affected, Receipt, recompose
from registry.reproducing import read_composed
from registry.withdrawing import pushable
from store.catalog import CompositionRecord, VersionRecord
from store.ownership import check_owner

if TYPE_CHECKING:
    from registry.composer import Composer

_OWN = ("mlp", "calibration")
"""Roles of arrays that are an expert's own: the trunk, a tokenizer, a scale may be anybody's."""


@dataclass
class ReceiptCheck:
    """What was found of a receipt.

    Attributes:
        receipt: the receipt.
        problems: what is not as it says, one line each; none means that all of it holds.
        notes: what came after it, and does not contradict it.
    """

    receipt: Receipt
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_receipt(registry: "Composer", receipt: Receipt, folders: Sequence[Path]) -> ReceiptCheck:
    """Hold a receipt against the registry and composed folders (see `Registry.verify_receipt`).

    Raises:
        ConflictError: it is of another registry.
    """
    check_owner(registry.catalog, registry.arrays)
    if receipt.registry != registry.catalog.id:
        raise ConflictError(
            f"the receipt is of the registry {receipt.registry!r}, this one is {registry.catalog.id}",
            "name the registry that it is of: --home DIR",
        )
    check = ReceiptCheck(receipt)
    known = {version.ref: version for version in registry.versions(everything=True)}
    check.problems += _versions(receipt, known)
    check.problems += _log(registry, receipt)
    _arrays(registry, check, known)
    withdrawn = [known[one.ref] for one in receipt.versions if one.ref in known]
    _compositions(registry, check, withdrawn)
    check.problems += _pushes(registry, receipt, withdrawn)
    for folder in folders:
        check.problems += _folder(registry, folder, {one.digest: one.ref for one in receipt.versions})
    return check


def _versions(receipt: Receipt, known: dict[str, VersionRecord]) -> Iterator[str]:
    if not receipt.versions:
        yield "the receipt names no version"
    for one in receipt.versions:
        found = known.get(one.ref)
        if found is None or found.digest != one.digest:
            there = f"no {one.ref}" if found is None else f"{one.ref} of content {found.digest[:12]}"
            said = f"{one.ref} of content {one.digest[:12]} was withdrawn"
            yield f"the receipt says that {said}; the registry has {there}"
        elif found.state == "active":
            yield f"{one.ref} is not withdrawn; the receipt says that it was, at {one.withdrawn_at}"
        elif one.purged_at is not None and found.state != "purged":
            yield f"{one.ref} is not purged; the receipt says that it was, at {one.purged_at}"
        elif found.withdrawn_at != one.withdrawn_at or one.purged_at not in (None, found.purged_at):
            yield (
                f"{one.ref} was withdrawn at {found.withdrawn_at} and purged at {found.purged_at}; the receipt says at "
                f"{one.withdrawn_at} and {one.purged_at}"
            )


def _log(registry: "Composer", receipt: Receipt) -> Iterator[str]:
    chain = registry.catalog.chain()
    if chain.broken is not None:
        yield f"the log: {chain.broken} does not follow from the one before: one was changed, or is missing"
        return
    events = registry.catalog.events()
    head = next((event.id for event in events if event.digest == receipt.head), None)
    if head is None:
        yield f"the log has no event of digest {receipt.head}: it is not the log that the receipt was made from"
        return
    told = {(event.action, event.subject, event.details.get("digest")) for event in events if event.id <= head}
    for one in receipt.versions:
        for action, at in (("opt-out", one.withdrawn_at), ("purge", one.purged_at)):
            if at is not None and (action, one.ref, one.digest) not in told:
                yield f"the log tells of no {action} of {one.ref} before the receipt"


def _arrays(registry: "Composer", check: ReceiptCheck, known: dict[str, VersionRecord]) -> None:
    present = {digest for digest in check.receipt.arrays if registry.arrays.has(digest)}
    uses: dict[str, list[tuple[str, str, str]]] = {digest: [] for digest in sorted(present)}
    for version in known.values() if present else ():
        for link in registry.catalog.arrays_of(version):
            if link.digest in present:
                uses[link.digest].append((version.ref, link.role, link.name))
    for digest, users in uses.items():
        if not users:
            check.problems.append(f"the deleted array {digest[:12]} is there, and no version needs it: run: reg gc")
            continue
        ref, role, name = next((use for use in users if use[1] in _OWN), users[0])
        into = check.problems if role in _OWN else check.notes
        into.append(f"the deleted array {digest[:12]} is there again: {ref} needs it as {role} {name}")


def _compositions(registry: "Composer", check: ReceiptCheck, withdrawn: list[VersionRecord]) -> None:
    made = {composition.digest: composition for composition in registry.catalog.compositions(withdrawn)}
    listed = {one.digest: one for one in check.receipt.compositions}
    for digest in sorted({*made} - {*listed}):
        check.problems.append(f"composition {digest[:12]} was made from what was withdrawn, and is not in the receipt")
    for digest, one in listed.items():
        if digest not in made:
            check.problems.append(f"composition {digest[:12]} was not made from what was withdrawn")
            continue
        if lost := sorted(set(made[digest].folders) - set(one.folders)):
            check.problems.append(f"composition {digest[:12]} was written to {lost[0]}, which is not in the receipt")
        _recomposed(registry, check, one, made[digest])


def _pushes(registry: "Composer", receipt: Receipt, withdrawn: list[VersionRecord]) -> Iterator[str]:
    known = registry.catalog.pushes(pushable(withdrawn, registry.catalog.compositions(withdrawn)))
    for push in known:
        if push not in receipt.pushes:
            yield f"{push.repo}, {push.revision}, was pushed to with what was withdrawn, and is not in the receipt"


def _recomposed(registry: "Composer", check: ReceiptCheck, one: Affected, made: CompositionRecord) -> None:
    if one.recomposed is None:
        return
    where, members = f"composition {one.digest[:12]}", one.recomposed.members
    withdrawn = {version.digest for version in check.receipt.versions}
    try:
        described = Description.from_document(made.document, where)
        if withdrawn & {member.digest for member in members} or not set(members) <= set(described.members):
            check.problems.append(f"{where}, recomposed: its members are not those that remained")
        elif (digest := recompose(registry, described, members)) != one.recomposed.digest:
            check.problems.append(
                f"{where}, recomposed, has digest {digest[:12]}, the receipt says {one.recomposed.digest[:12]}"
            )
    except (ConflictError, NotFoundError) as error:
        check.notes.append(f"{where} can no longer be recomposed: {error.message}")
    except RegError as error:
        check.problems.append(f"{where} cannot be recomposed: {error.message}")


def _folder(registry: "Composer", folder: Path, withdrawn: dict[str, str]) -> Iterator[str]:
    try:
        document, described = read_composed(folder)
    except RegError as error:
        yield error.message if str(folder) in error.message else f"{folder}: {error.message}"
        return
    for one in (*described.members, *([described.base] if described.base else [])):
        if one.digest in withdrawn:
            yield f"{folder} holds {withdrawn[one.digest]}: its {MARKER} names {one.name} {one.digest[:12]}"
    yield from problems_of(folder, document, registry.progress)
