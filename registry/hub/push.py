"""Pushing composed folders and experts to the Hub, and recording each push."""

from pathlib import Path
from tempfile import TemporaryDirectory

from registry.calibration.calibration import is_self_sampled
from registry.checkpoint.annotations import FILE_NAME
from registry.composition import Plan
from registry.composition.card import licenses_of
from registry.composition.integrity import ComposedFolder
from registry.composition.licenses import check_spelling
from registry.hub import expert_files, folder_files
from registry.hub.hub_errors import endpoint
from registry.hub.target import Commit, Pushed, Target
from registry.hub.upload import check_account, upload
from registry.io.model_folder import MARKER
from registry.member import load_member
from registry.names.reference import check_license
from registry.progress import remark
from registry.workspace import PathLike, Workspace
from store.catalog import PushRecord


def push(workspace: Workspace, folder: PathLike, target: Target | str, license_id: str | None = None) -> Pushed:
    """Push a composed folder (arguments and errors as in `Registry.push`)."""
    workspace.check_owner()
    target = _target(target)
    license_id = None if license_id is None else _license(license_id)
    composed = ComposedFolder.read(Path(folder))
    digest = composed.digest
    folder_files.versions_of(workspace.catalog, composed)  # without the Hub, so first
    check_account(target)
    files = folder_files.outgoing(workspace, composed, target.repo_id.rpartition("/")[2], license_id)
    if not workspace.catalog.has_composition(digest):
        remark(workspace.progress, f"{folder} was not composed in this registry: no receipt will list this push")
    names = ", ".join(member.name for member in composed.manifest.members)
    commit = Commit(
        files,
        MARKER,
        folder_files.conflict_reason(digest),
        f"Composition {digest[:12]} of {names}"[:200],
        f"Pushed by expert-registry.\n\ncomposition {digest}",
    )
    return _upload(workspace, target, commit, digest)


def check_push(workspace: Workspace, plan: Plan, target: Target | str, license_id: str | None = None) -> None:
    """Check, before composing, that the result can be pushed (arguments and errors as in `Registry.check_push`)."""
    chosen = None if license_id is None else _license(license_id)
    own = licenses_of(plan.members, plan.base).license
    folder_files.check_license(own, chosen, plan.versions, ", ".join(plan.names))
    check_account(_target(target))


def push_expert(workspace: Workspace, ref: str, target: Target | str, *, calibration: bool = False) -> Pushed:
    """Push a registered expert (arguments and errors as in `Registry.push_expert`)."""
    workspace.check_owner()
    target = _target(target)
    version = workspace.resolve(ref, kind="expert")
    check_account(target)
    member = load_member(workspace, version)
    label = version.statistics[0].calibration_label
    calibration_kept = member.calibration is not None and (calibration or is_self_sampled(label))
    if version.content is not None and version.content["license"] is None:
        remark(workspace.progress, f"{version.ref} has no license: nobody else may use it without one")
    workspace.home.work.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=workspace.home.work) as temporary:
        folder = Path(temporary) / "expert"
        expert_manifest = expert_files.write_expert(
            member, folder, calibration=calibration, progress=workspace.progress
        )
        page = expert_files.card(member, expert_manifest, target.repo_id, kept=calibration_kept)
        commit = Commit(
            expert_files.outgoing(folder, page, workspace.progress),
            FILE_NAME,
            expert_files.conflict_reason(version.name, expert_manifest.digest),
            f"Expert {version.name}, {expert_manifest.digest[:12]}",
            f"Pushed by expert-registry.\n\nexpert {expert_manifest.digest}",
        )
        return _upload(workspace, target, commit, version.ref)


def _upload(workspace: Workspace, target: Target, commit: Commit, subject: str) -> Pushed:
    """Upload a commit; record the push before and after it, so that receipts list interrupted pushes too."""

    def record(commit_id: str | None, revision: str) -> None:
        workspace.catalog.record_push(subject, PushRecord(target.repo_id, revision, endpoint(), commit_id))

    pushed = upload(target, commit, lambda: record(None, target.branch), workspace.progress)
    record(pushed.commit, pushed.revision)
    return pushed


def _license(text: str) -> str:
    check_spelling(check_license(text))
    return text.lower()


def _target(target: Target | str) -> Target:
    return Target.parse(target) if isinstance(target, str) else target
