"""Pushing a composed folder, which must be, byte for byte, what was composed."""

from collections.abc import Mapping, Sequence

from registry.composition.cards.licenses import roll_up
from registry.composition.cards.pushed import CARD, license_of, with_additions
from registry.composition.integrity import ComposedFolder
from registry.composition.manifest import CompositionManifest
from registry.errors import ConflictError, InvalidInputError
from registry.hub.card_additions import languages_of, metadata, page, source_of
from registry.hub.target import ConflictReason, Outgoing
from registry.io.model_folder import MARKER
from registry.progress import remark
from registry.workspace import Workspace
from store.catalog import Catalog, VersionRecord

LICENSE_HINT = "say which license the whole is under: --license ID, as the Hub writes it; other for one of its own"


def outgoing(workspace: Workspace, composed: ComposedFolder, name: str, license_id: str | None) -> dict[str, Outgoing]:
    """Return the files to push of a composed folder.

    Args:
        workspace: where its members are registered.
        composed: the folder.
        name: of the model on the Hub.
        license_id: a license in place of what the members' come to.

    Raises:
        CheckpointError: it was not composed by this program, or was changed since.
        ConflictError: a member was opted out.
        InvalidInputError: there is no license for the whole.
    """
    folder, described, files = composed.path, composed.manifest, composed.files
    versions = versions_of(workspace.catalog, described, str(folder))
    composed.check(workspace.progress, "compose it again, and push that")
    card = composed.card if CARD in files else b""
    check_license(license_of(card), license_id, versions, str(folder))
    if len(versions) < len(described.members):
        remark(workspace.progress, f"not all members of {folder} are registered here, so its card says less of them")
    evaluation = next(iter(workspace.catalog.evaluations(composed.digest)), None)
    sources = [source_of(workspace.catalog, version) for version in versions]
    found = {path: Outgoing(folder / path, sha256) for path, sha256 in files.items()}
    found[MARKER] = Outgoing.of((folder / MARKER).read_bytes())
    if CARD in files:
        extra = metadata(name, sources, languages_of(versions), license_id, evaluation)
        found[CARD] = Outgoing.of(with_additions(card, extra, page(sources, evaluation) if sources else ""))
    return found


def check_license(own: str | None, chosen: str | None, versions: Sequence[VersionRecord], what: str) -> None:
    """Check that there is a license to publish under.

    Args:
        own: what the members' licenses come to, as the card says; None for nothing.
        chosen: what whoever pushes it says.
        versions: the members, as far as they are registered.
        what: what messages call it.

    Raises:
        InvalidInputError: there is none; the message says why.
    """
    if own is None and chosen is None:
        found = roll_up({version.name: (version.content or {}).get("license") for version in versions})
        why = found.why or "its card says none"
        raise InvalidInputError(f"{what} cannot be published under its members' licenses: {why}", LICENSE_HINT)


def versions_of(catalog: Catalog, described: CompositionManifest, holder: str) -> list[VersionRecord]:
    """Return the versions that a composition is made of, as far as they are registered here, a base model last.

    Raises:
        ConflictError: one of them was opted out.
    """
    found = []
    for one in (*described.members, *([described.base] if described.base else [])):
        known = [version for version in catalog.versions(one.name) if version.digest == one.digest]
        active = [version for version in known if version.state == "active"]
        if known and not active:
            raise ConflictError(
                f"{holder} holds {known[-1].ref}, which was opted out at {known[-1].withdrawn_at}",
                f"compose the others without it, and delete {holder}",
            )
        found += active[-1:]
    return found


def conflict_reason(digest: str) -> ConflictReason:
    """Return the check that a repository holds no other composition than that of `digest`."""

    def reason(found: Mapping[str, object]) -> str | None:
        other = str(found.get("digest", ""))
        return None if other == digest else f"another composition, {other[:12]}"

    return reason
