"""Consequences of an opt-out, looked up before it: nothing is changed, and no weight is read."""

from collections.abc import Sequence
from dataclasses import replace

from registry.composition.manifest import CompositionManifest
from registry.composition.recipe.fields import output_of
from registry.errors import RegError
from registry.member import load_member
from registry.names.resolve import by_digest
from registry.opt_out.receipt import plan_remaining
from registry.opt_out.shared_training import trained_together
from registry.opt_out.withdraw import Heirs, OptOut, pushable
from registry.workspace import Workspace
from store.catalog import CompositionRecord, VersionRecord

MOST_HEIRS = 8
"""Compositions whose heirs are predicted, the latest first: each takes a plan, and the picture repeats itself."""


def consequences(workspace: Workspace, versions: Sequence[VersionRecord], *, purge: bool) -> OptOut:
    """Return what `withdraw` would do and leave."""
    catalog, store = workspace.catalog, workspace.arrays
    compositions = tuple(catalog.compositions(versions))
    refs = {version.ref for version in versions}
    withdrew = tuple(version.ref for version in versions if version.state == "active")
    did = OptOut(
        versions=tuple(versions),
        withdrew=withdrew,
        deleted=tuple(version.ref for version in versions if version.state != "purged") if purge else (),
        compositions=compositions,
        purged=purge,
        pushes=tuple(catalog.pushes(pushable(versions, compositions))),
        trained_together=trained_together(versions, workspace.versions),
        heirs=_heirs(workspace, versions, compositions),
    )
    if not purge:
        return did
    trained = {f"composition {composition.digest}" for composition in compositions}
    own = {link.digest for version in versions for link in catalog.arrays_of(version)} | catalog.trained_with(versions)
    shared = {digest for digest in own if not refs | trained >= set(catalog.users_of(digest))}
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
    for version in versions:
        if version.state != "active" or version.kind != "expert":
            continue
        mixtures = [one for one in compositions if version.ref in one.members and _is_mixture(one)]
        for composition in mixtures[-MOST_HEIRS:]:
            try:
                if shares := _shares(workspace, version, composition):
                    found.append(Heirs(composition.digest, version.ref, shares))
            except RegError:  # it cannot be composed without the version, so nobody inherits
                continue
    return tuple(found)


def _is_mixture(composition: CompositionRecord) -> bool:
    output = output_of(composition.document["recipe"])
    return output.is_previewed and "from_base" not in composition.document


def _shares(workspace: Workspace, version: VersionRecord, composition: CompositionRecord) -> dict[str, float]:
    """Return name → share of the version's text, of the members that remain.

    Raises:
        RegError: the rest cannot be composed, or has no counts of tokens.
    """
    label = f"composition {composition.digest[:12]}"
    manifest = replace(CompositionManifest.from_document(composition.document, label), parent=None)
    rest = [member for member in manifest.members if member.name != version.name]
    if len(rest) < 2:
        for member in rest:
            by_digest(workspace.catalog, member.name, member.digest, label)  # an opted-out one inherits nothing
        return {member.name: 1.0 for member in rest}
    plan = plan_remaining(workspace, manifest, rest)
    return plan.output.shares_of(plan, load_member(workspace, version))
