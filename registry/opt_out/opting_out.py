"""Opting versions out, the consequences of it, and the compositions that it concerns."""

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from registry.composition.manifest import ComposedFolder, CompositionManifest
from registry.composition.recipe.fields import target_of
from registry.errors import RegError
from registry.member import load_member
from registry.names.resolve import by_digest, composition_of, version_of_content, versions_matching
from registry.opt_out.receipt import make_receipt, plan_remaining, receipt_file
from registry.opt_out.withdraw import Heirs, OptOut, concerned, own_arrays, withdraw
from registry.workspace import PathLike, Workspace
from store.catalog import CompositionRecord, VersionRecord

MOST_HEIRS = 8  # compositions of a version for which shares are predicted, the latest first: each takes a plan


def opt_out(
    workspace: Workspace, ref: str, *, purge: bool = False, receipt: PathLike | None = None, dry_run: bool = False
) -> OptOut:
    """Withdraw the versions that `ref` matches (arguments and errors as in `Registry.opt_out`)."""
    versions = versions_matching(workspace.catalog, ref)
    if dry_run:
        return consequences(workspace, versions, purge=purge)
    reserved = nullcontext() if receipt is None else receipt_file(Path(receipt), ref)
    with reserved as write, workspace.catalog.lock(f"opting {ref} out"):
        result = withdraw(workspace, versions, purge=purge)
        if write is not None:
            write(make_receipt(workspace, result))
    workspace.tell("opt-out", *result.withdrew)
    return result


def consequences(workspace: Workspace, versions: Sequence[VersionRecord], *, purge: bool) -> OptOut:
    """Return what `withdraw` would do and leave."""
    catalog, store = workspace.catalog, workspace.arrays
    did = concerned(workspace, versions, purge=purge)
    did = replace(did, heirs=_heirs(workspace, versions, did.compositions))
    if not purge:
        return did
    users = {version.ref for version in versions} | {f"composition {one.digest}" for one in did.compositions}
    own = own_arrays(catalog, versions)
    shared = {digest for digest in own if not users >= set(catalog.users_of(digest))}
    deleted = sorted(own - shared)
    return replace(
        did,
        deleted_digests=tuple(deleted),
        deleted_bytes=sum(store.disk_bytes(digest) for digest in deleted),
        shared_digests=tuple(sorted(shared)),
    )


def _heirs(
    workspace: Workspace, versions: Sequence[VersionRecord], compositions: Sequence[CompositionRecord]
) -> tuple[Heirs, ...]:
    """Return who would get the tokens of the active ones of `versions`, in the latest mixtures with them."""
    found = []
    mixtures = [
        one
        for one in compositions
        if target_of(one.document["recipe"]).is_previewed and "from_base" not in one.document
    ]
    for version in versions:
        if version.state != "active" or version.kind != "expert":
            continue
        for composition in [one for one in mixtures if version.ref in one.members][-MOST_HEIRS:]:
            with suppress(RegError):  # it cannot be composed without the version, so nobody gets its tokens
                if shares := _shares(workspace, version, composition):
                    found.append(Heirs(composition.digest, version.ref, shares))
    return tuple(found)


def _shares(workspace: Workspace, version: VersionRecord, composition: CompositionRecord) -> dict[str, float]:
    """Return name → share of the version's text, of the members that remain (RegError: they cannot be composed)."""
    label = f"composition {composition.digest[:12]}"
    manifest = replace(CompositionManifest.from_document(composition.document, label), parent=None)
    rest = [member for member in manifest.members if member.name != version.name]
    if len(rest) < 2:
        for member in rest:
            by_digest(workspace.catalog, member.name, member.digest, label)  # an opted-out one gets nothing
        return {member.name: 1.0 for member in rest}
    plan = plan_remaining(workspace, manifest, rest)
    return plan.output.shares_of(plan, load_member(workspace, version))


def opted_out_members(workspace: Workspace, composition: PathLike) -> list[VersionRecord]:
    """Return the versions that a composition was made from and that were opted out (see `Registry.opted_out`)."""
    try:
        if Path(composition).is_dir():
            folder = ComposedFolder.read(Path(composition))
            digest, manifest = folder.digest, folder.manifest
        elif (record := composition_of(workspace.catalog, str(composition))) is not None:
            label = f"composition {record.digest[:12]}"
            digest, manifest = record.digest, CompositionManifest.from_document(record.document, label)
        else:
            return []
    except RegError:  # not a composition, or one that is refused by whatever reads it
        return []
    found = [version_of_content(workspace.catalog, one.name, one.digest, digest) for one in manifest.versions]
    return [version for version in found if version is not None and version.state != "active"]
