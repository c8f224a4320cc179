"""Members of a composed folder whose statistics are here."""

from registry.composition.manifest import ComposedFolder
from registry.families.sites import MLP_INPUT
from registry.member import Member, load_member
from registry.names.resolve import version_of_content
from registry.progress import remark
from registry.workspace import Workspace


def known_members(workspace: Workspace, composed: ComposedFolder, without: str) -> list[Member]:
    """Return the members of a folder in their order, of which one at least has statistics; else none.

    Why there are none is said, after `without`, what follows from it: one of them is not registered here, or is
    opted out; they have counts alone; or they are copies of a base model.
    """
    refs = composed.manifest.members
    found = [version_of_content(workspace.catalog, ref.name, ref.digest, composed.digest) for ref in refs]
    if composed.manifest.from_base is not None:
        why = "copies of a base model have no text of their own"
    elif not all(one and one.state == "active" for one in found):
        why = "not all of its members are registered here"
    else:
        members = [load_member(workspace, one) for one in found if one]
        if any(member.has_statistics(MLP_INPUT) for member in members):
            return members
        why = "no member has statistics, but counts alone"
    remark(workspace.progress, f"{without}: {why}")
    return []
