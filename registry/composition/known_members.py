"""Members of a composed folder that are registered here."""

from registry.composition.manifest import ComposedFolder, VersionRef
from registry.families.sites import MLP_INPUT
from registry.member import Member, load_member
from registry.names.resolve import find_by_digest
from registry.progress import remark
from registry.workspace import Workspace
from store.catalog import Catalog, VersionRecord


def registered_versions(catalog: Catalog, composed: ComposedFolder) -> dict[VersionRef, VersionRecord]:
    """Return the versions of a folder that are registered here, base model last (ConflictError: one was opted out)."""
    holder, digest = str(composed.path), composed.digest
    versions = {
        one: find_by_digest(catalog, one.name, one.digest, holder, digest) for one in composed.manifest.versions
    }
    return {one: version for one, version in versions.items() if version is not None}


def known_members(workspace: Workspace, composed: ComposedFolder, without: str) -> list[Member]:
    """Return the members of a folder in their order, of which one at least has statistics; else none.

    Why there are none is said, after `without`, what follows from it: one of them is not registered here; they have
    counts alone; or they are copies of a base model (ConflictError: one was opted out).
    """
    found, refs = registered_versions(workspace.catalog, composed), composed.manifest.members
    if composed.manifest.from_base is not None:
        why = "copies of a base model have no text of their own"
    elif not {*refs} <= found.keys():
        why = "not all of its members are registered here"
    else:
        members = [load_member(workspace, found[ref]) for ref in refs]
        if any(member.has_statistics(MLP_INPUT) for member in members):
            return members
        why = "no member has statistics, but counts alone"
    remark(workspace.progress, f"{without}: {why}")
    return []
