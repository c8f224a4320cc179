"""Pushing composed folders and experts to the Hub, and recording each push."""

from collections.abc import Callable, Sequence
from pathlib import Path

from registry.calibration.calibration import is_self_sampled
from registry.checkpoint.annotations import FILE_NAME, SIGNATURE_NAME
from registry.composition import Plan
from registry.composition.card import CARD, license_of, licenses_of, with_additions
from registry.composition.licenses import check_spelling, roll_up
from registry.composition.manifest import ComposedFolder, registered_versions
from registry.errors import InvalidInputError
from registry.evaluation.stored import widest
from registry.hub import expert_files
from registry.hub.card_additions import languages_of, metadata, page, source_of
from registry.hub.hub_errors import endpoint
from registry.hub.target import Commit, Outgoing, Pushed, Target
from registry.hub.upload import check_account, upload
from registry.io import ssh
from registry.io.disk import file_digest
from registry.io.limits import JSON_BYTES
from registry.io.model_folder import MARKER, UNLISTED
from registry.io.untrusted import own_file, read_small
from registry.io.work_dirs import temporary_folder
from registry.member import load_member
from registry.names.reference import check_license
from registry.progress import remark
from registry.workspace import PathLike, Workspace
from store.catalog import PushRecord, VersionRecord

Sign = Callable[[ComposedFolder], object]  # writes a signature of a folder whose files were checked into it
RECOMPOSE = "compose it again, and push that"


def push(
    workspace: Workspace,
    folder: PathLike,
    target: Target | str,
    license_id: str | None = None,
    sign: Sign | None = None,
) -> Pushed:
    """Push a composed folder, signed by `sign` if given (other arguments and errors as in `Registry.push`)."""
    workspace.check_owner()
    target = _target(target)
    license_id = _license(license_id)
    composed = ComposedFolder.read(Path(folder))
    digest = composed.digest
    registered_versions(workspace.catalog, composed)  # without the Hub, so first
    check_account(target)
    files = _outgoing(workspace, composed, target.repo_id.rpartition("/")[2], license_id)
    if sign is not None:
        sign(composed)
    for name in UNLISTED:
        if (found := own_file(composed.path, name)) is not None:  # no link to a secret: nothing lists its digest
            files[name] = Outgoing.of(read_small(found, JSON_BYTES))
    if not workspace.catalog.has_composition(digest):
        remark(workspace.progress, f"{folder} was not composed in this registry: no receipt will list this push")
    names = ", ".join(member.name for member in composed.manifest.members)
    commit = Commit(files, MARKER, digest, f"Composition {digest[:12]} of {names}"[:200])
    return _upload(workspace, target, commit, digest)


def check_push(workspace: Workspace, plan: Plan, target: Target | str, license_id: str | None = None) -> None:
    """Check, before composing, that the result can be pushed (arguments and errors as in `Registry.check_push`)."""
    license_id = _license(license_id)
    own = licenses_of(plan.members, plan.base).license
    _check_license(own, license_id, plan.versions, ", ".join(plan.names))
    check_account(_target(target))


def push_expert(
    workspace: Workspace, ref: str, target: Target | str, *, calibration: bool = False, sign: PathLike | None = None
) -> Pushed:
    """Push a registered expert (arguments and errors as in `Registry.push_expert`)."""
    workspace.check_owner()
    target = _target(target)
    version = workspace.resolve(ref, kind="expert")
    if sign is not None:
        ssh.read_key(Path(sign))
    check_account(target)
    member = load_member(workspace, version)
    label = version.statistics[0].calibration_label
    calibration_kept = member.calibration is not None and (calibration or is_self_sampled(label))
    if version.content is not None and version.content["license"] is None:
        remark(workspace.progress, f"{version.ref} has no license: nobody else may use it without one")
    with temporary_folder(workspace.home.work) as temporary:
        folder = temporary / "expert"
        manifest = expert_files.write_expert(member, folder, calibration=calibration, progress=workspace.progress)
        if sign is not None:
            (folder / SIGNATURE_NAME).write_bytes(ssh.sign((folder / FILE_NAME).read_bytes(), Path(sign)))
        paths, digest = sorted(folder.iterdir()), manifest.digest
        with workspace.progress("hashing", sum(path.stat().st_size for path in paths), "B") as advance:
            files = {path.name: Outgoing(path, file_digest(path, advance)) for path in paths}
        files[CARD] = Outgoing.of(expert_files.card(member, manifest, target.repo_id, kept=calibration_kept))
        commit = Commit(files, FILE_NAME, digest, f"Expert {version.name}, {digest[:12]}", version.name)
        return _upload(workspace, target, commit, version.ref)


def _upload(workspace: Workspace, target: Target, commit: Commit, subject: str) -> Pushed:
    """Upload a commit; record the push before and after it, so that receipts list interrupted pushes too."""

    def record(commit_id: str | None, revision: str) -> None:
        workspace.catalog.record_push(subject, PushRecord(target.repo_id, revision, endpoint(), commit_id))

    pushed = upload(target, commit, lambda: record(None, target.branch), workspace.progress)
    record(pushed.commit, pushed.revision)
    return pushed


def _license(text: str | None) -> str | None:
    if text is None:
        return None
    check_spelling(check_license(text))
    return text.lower()


def _target(target: Target | str) -> Target:
    return Target.parse(target) if isinstance(target, str) else target


def _outgoing(workspace: Workspace, composed: ComposedFolder, name: str, license_id: str | None) -> dict[str, Outgoing]:
    """Return the files to push of a composed folder; `license_id` overrides the members' licenses.

    Raises CheckpointError if the folder was changed, ConflictError if a member was opted out, and InvalidInputError if
    no license follows from those of the members and no `license_id` is given.
    """
    folder, manifest, files = composed.path, composed.manifest, composed.files
    versions = list(registered_versions(workspace.catalog, composed).values())
    composed.check(workspace.progress, RECOMPOSE)
    card = composed.card if CARD in files else b""
    _check_license(license_of(card), license_id, versions, str(folder))
    if len(versions) < len(manifest.versions):
        left_out = f"not all members of {folder} are registered here, so its card omits their locations"
        remark(workspace.progress, left_out)
    evaluation = widest(workspace.catalog.evaluations(composed.digest), [member.name for member in manifest.members])
    sources = [source_of(workspace.catalog, version) for version in versions]
    digests = composed.sha256(workspace.progress, RECOMPOSE)
    outgoing_files = {path: Outgoing(folder / path, sha256) for path, sha256 in digests.items()}
    outgoing_files[MARKER] = Outgoing.of(composed.data)
    if CARD in files:
        extra = metadata(name, sources, languages_of(versions), license_id, evaluation)
        audits = workspace.catalog.audits(composed.digest)
        added = page(sources, evaluation, audits) if sources else ""
        outgoing_files[CARD] = Outgoing.of(with_additions(card, extra, added))
    return outgoing_files


def _check_license(own: str | None, chosen: str | None, versions: Sequence[VersionRecord], subject: str) -> None:
    """Check that `subject` has a license, the card's `own` or a chosen one (InvalidInputError, with the reason)."""
    if own is None and chosen is None:
        combined = roll_up({version.name: (version.content or {}).get("license") for version in versions})
        why = combined.why or "its card has none"
        raise InvalidInputError(
            f"{subject} cannot be published under its members' licenses: {why}",
            "choose the license of the whole: --license ID, an identifier of the Hub; other for a custom one",
        )
