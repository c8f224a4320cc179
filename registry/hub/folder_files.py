"""The files of a pushed composed folder, which must be unchanged since it was composed."""

from collections.abc import Mapping, Sequence

from registry.composition.integrity import ComposedFolder
from registry.composition.licenses import roll_up
from registry.composition.pushed_card import CARD, license_of, with_additions
from registry.errors import CheckpointError, InvalidInputError
from registry.evaluation.stored import widest
from registry.hub.card_additions import languages_of, metadata, page, source_of
from registry.hub.target import ConflictReason, Outgoing
from registry.io.model_folder import MARKER
from registry.io.tree_digest import PREFIX, tree_and_sha256
from registry.names.resolve import find_by_digest
from registry.progress import remark
from registry.workspace import Workspace
from store.catalog import Catalog, VersionRecord

LICENSE_HINT = "choose the license of the whole: --license ID, an identifier of the Hub; other for a custom one"


def outgoing(workspace: Workspace, composed: ComposedFolder, name: str, license_id: str | None) -> dict[str, Outgoing]:
    """Return the files to push of a composed folder.

    Args:
        workspace: the registry of the members.
        composed: the folder.
        name: the name of the model on the Hub.
        license_id: a license that overrides the members' licenses.

    Raises:
        CheckpointError: the folder was not composed by this program, or was changed since.
        ConflictError: a member was opted out.
        InvalidInputError: no license follows from the members' licenses, and no `license_id` is given.
    """
    folder, manifest, files = composed.path, composed.manifest, composed.files
    versions = versions_of(workspace.catalog, composed)
    composed.check(workspace.progress, "compose it again, and push that")
    card = composed.card if CARD in files else b""
    check_license(license_of(card), license_id, versions, str(folder))
    if len(versions) < len(manifest.versions):
        remark(
            workspace.progress, f"not all members of {folder} are registered here, so its card omits their locations"
        )
    evaluation = widest(workspace.catalog.evaluations(composed.digest), [member.name for member in manifest.members])
    sources = [source_of(workspace.catalog, version) for version in versions]
    outgoing_files = {path: Outgoing(folder / path, sha256) for path, sha256 in _sha256(composed, workspace).items()}
    outgoing_files[MARKER] = Outgoing.of((folder / MARKER).read_bytes())
    if CARD in files:
        extra = metadata(name, sources, languages_of(versions), license_id, evaluation)
        audits = workspace.catalog.audits(composed.digest)
        added = page(sources, evaluation, audits) if sources else ""
        outgoing_files[CARD] = Outgoing.of(with_additions(card, extra, added))
    return outgoing_files


def _sha256(composed: ComposedFolder, workspace: Workspace) -> dict[str, str]:
    """Return file → SHA-256, which the Hub wants; a file of weights is read for it, and compared with its tree digest.

    Raises:
        CheckpointError: a file was changed since it was composed.
    """
    sizes = {name: (composed.path / name).stat().st_size for name in composed.files}
    digests = dict(composed.files)
    trees = {name: digest for name, digest in digests.items() if digest.startswith(PREFIX)}
    with workspace.progress("hashing", sum(sizes[name] for name in trees), "B") as advance:
        for name, known in trees.items():
            path = composed.path / name
            tree, digests[name] = tree_and_sha256(path, advance)
            if tree != known:
                raise CheckpointError(f"{path} was changed since it was written", "compose it again, and push that")
    return digests


def check_license(own: str | None, chosen: str | None, versions: Sequence[VersionRecord], subject: str) -> None:
    """Check that there is a license to publish under.

    Args:
        own: the license in the card, which follows from the members' licenses; None without one.
        chosen: the license that the user chose.
        versions: the members that are registered.
        subject: the name of the folder or composition in messages.

    Raises:
        InvalidInputError: there is no license; the message gives the reason.
    """
    if own is None and chosen is None:
        combined = roll_up({version.name: (version.content or {}).get("license") for version in versions})
        why = combined.why or "its card has none"
        raise InvalidInputError(f"{subject} cannot be published under its members' licenses: {why}", LICENSE_HINT)


def versions_of(catalog: Catalog, composed: ComposedFolder) -> list[VersionRecord]:
    """Return those versions of a composed folder that are registered here, a base model last.

    Raises:
        ConflictError: a version was opted out.
    """
    holder, digest = str(composed.path), composed.digest
    versions = (find_by_digest(catalog, one.name, one.digest, holder, digest) for one in composed.manifest.versions)
    return [version for version in versions if version is not None]


def conflict_reason(digest: str) -> ConflictReason:
    """Return the check that a repository holds only the composition `digest`."""

    def reason(marker: Mapping[str, object]) -> str | None:
        other = str(marker.get("digest", ""))
        return None if other == digest else f"another composition, {other[:12]}"

    return reason
