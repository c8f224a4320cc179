"""Upload of files as one commit of a repository of the Hub, with a comparison of what arrived.

Large files are sent first and stay on the Hub if the connection breaks: the next push does not send them again. Only
the commit makes them visible, all at once.
"""

import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from registry.composition.pushed_card import CARD
from registry.errors import ConflictError, DamagedError, NotFoundError, RegError, StorageError
from registry.hub.hub_errors import AGAIN, LOGIN, bad_card, endpoint, offline, translate_error
from registry.hub.target import Commit, Outgoing, Pushed, Target
from registry.io.display import some
from registry.io.limits import JSON_BYTES
from registry.io.untrusted import json_object
from registry.progress import Progress, remark

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

_OF_HUB = (".gitattributes",)
_BLANK = (*_OF_HUB, "README.md", "LICENSE", "LICENSE.md", ".gitignore")
"""The files of a repository that was just created on the Hub's web page."""


@dataclass
class _RemoteState:
    """The state of a target.

    Attributes:
        exists: the repository exists.
        head: the commit that the branch points at; None if the branch does not exist.
        files: all files of the branch, by path.
        state: a description of the state, for messages.
    """

    exists: bool
    head: str | None
    files: "dict[str, RepoFile]"
    state: str


def check_account(target: Target) -> None:
    """Check the account's token with the Hub, before anything is composed or read.

    Raises:
        InvalidInputError: offline mode is set.
        StorageError: the token is missing, rejected or read-only, or the Hub cannot be reached.
    """
    from huggingface_hub import HfApi, constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise offline(target)
    if get_token() is None:
        raise StorageError(f"there is no token, and pushing to {target} needs one", LOGIN)
    with _translated(target, lambda: "nothing was sent"):
        account = HfApi().whoami()
    role = account.get("auth", {}).get("accessToken", {}).get("role")
    if role == "read":
        raise StorageError(f"the token may only read, and pushing to {target} writes", LOGIN)


def upload(
    target: Target,
    commit: Commit,
    on_start: Callable[[], None],
    progress: Progress,
) -> Pushed:
    """Push the files of `commit` to `target`, and compare what arrived.

    Args:
        target: the repository and branch.
        commit: the files and the commit message.
        on_start: called after all checks, when the repository exists, just before files are sent.
        progress: reports the upload.

    Raises:
        InvalidInputError: offline mode is set.
        NotFoundError: the revision does not exist, or the repository for a pull request does not.
        ConflictError: the repository holds something else, or another push changed it.
        DamagedError: the files that arrived differ from those sent.
        StorageError: the Hub or the connection fails.
    """
    from huggingface_hub import HfApi

    check_account(target)
    api, files = HfApi(), commit.files
    remote = _RemoteState(False, None, {}, "nothing was sent")
    with _translated(target, lambda: remote.state), _progress_bars():
        _read_state(api, target, remote)
        if remote.files and not _same(remote.files, files):
            _check_replaceable(api, target, remote, commit)
        if remote.head is not None and not target.create_pr and _same(remote.files, files):
            return _pushed(target, target.branch, remote.head, files, added=False)
        if CARD in files:
            _check_card(files[CARD], remote)
        _prepare(api, target, remote)
        on_start()
        with progress(f"pushing to {target}", commit.nbytes, "B") as advance:
            commit_id, revision = _commit(api, target, remote, commit, progress)
            advance(commit.nbytes)
        remote.state = f"commit {commit_id[:12]} exists"
        _verify(api, target, commit_id, files)
    return _pushed(target, revision, commit_id, files, added=True)


def _check_card(card: Outgoing, remote: _RemoteState) -> None:
    """Let the Hub validate the card's metadata, before anything is created or sent.

    Raises:
        CheckpointError: the Hub rejects the metadata.
    """
    from huggingface_hub import ModelCard

    text = card.source if isinstance(card.source, bytes) else card.source.read_bytes()
    try:
        ModelCard(text.decode(), ignore_metadata_errors=True).validate()
    except ValueError as error:
        raise bad_card(str(error), remote.state) from error


def _read_state(api: "HfApi", target: Target, remote: _RemoteState) -> None:
    """Read the state of the target from the Hub."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        info = api.model_info(target.repo_id)
    except GatedRepoError:
        raise
    except RepositoryNotFoundError as error:
        if target.create_pr:
            raise NotFoundError(
                f"there is no repository {target.repo_id} to propose a change to", "omit --create-pr to create it"
            ) from error
        return
    remote.exists = True
    remote.state = f"{target} is unchanged"
    if target.private and not info.private:
        raise ConflictError(
            f"{target.repo_id} exists and is public: everyone can see what is pushed to it",
            f"make it private in its settings, {endpoint()}/{target.repo_id}/settings, or choose another name",
        )
    try:
        remote.head = _head(api, target)
        remote.files = _tree(api, target, remote.head)
    except RevisionNotFoundError:
        if target.create_pr or not _is_branch(target.branch):
            raise
        remote.head = None


def _is_branch(revision: str) -> bool:
    """Return True if a revision can be created: it is neither a commit nor a pull request."""
    return not revision.startswith("refs/") and not re.fullmatch("[0-9a-f]{40}", revision)


def _check_replaceable(api: "HfApi", target: Target, remote: _RemoteState, commit: Commit) -> None:
    """Check that the repository's content may be replaced.

    Raises:
        ConflictError: this program did not push the content, or it is another composition or expert.
    """
    if set(remote.files) <= {*_BLANK}:
        return
    marker = commit.marker
    elsewhere = "choose another name or --revision, or propose the change: --create-pr"
    if marker not in remote.files or remote.files[marker].size > JSON_BYTES:
        if target.create_pr:
            return
        listed = some(sorted(set(remote.files) - {*_BLANK})).rpartition(" ")[0]
        raise ConflictError(
            f"{target} is taken: it holds {listed}, and no {marker} of an earlier push; {remote.state}", elsewhere
        )
    file = api.hf_hub_download(target.repo_id, marker, revision=remote.head)
    why = commit.conflict_reason(json_object(Path(file).read_bytes(), f"{target}/{marker}"))
    if why is not None and not (target.force or target.create_pr):
        raise ConflictError(
            f"{target} holds {why}; {remote.state}", f"replace it with a new commit: --force; or {elsewhere}"
        )


def _prepare(api: "HfApi", target: Target, remote: _RemoteState) -> None:
    """Create the repository and the branch if they do not exist."""
    if not remote.exists:
        api.create_repo(target.repo_id, private=target.private or None, repo_type="model")
        remote.exists = True
        remote.state = f"{target.repo_id} was created and holds no model yet; files that arrived are not sent again"
    else:
        remote.state = f"{target} is unchanged; files that arrived are not sent again"
    if remote.head is None and target.revision not in (None, "main"):
        api.create_branch(target.repo_id, branch=target.branch, exist_ok=True)
    if remote.head is None:
        remote.head = _head(api, target)
        remote.files = _tree(api, target, remote.head)


def _commit(
    api: "HfApi",
    target: Target,
    remote: _RemoteState,
    commit: Commit,
    progress: Progress,
) -> tuple[str, str]:
    """Send the files, and return the commit and its branch or pull request."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    files = commit.files
    operations: list[Any] = [
        CommitOperationDelete(path) for path in sorted(remote.files) if path not in files and path not in _OF_HUB
    ]
    operations += [CommitOperationAdd(path, file.source) for path, file in sorted(files.items())]
    try:
        created = api.create_commit(
            target.repo_id,
            operations,
            commit_message=commit.message,
            commit_description=commit.description,
            revision=target.revision,
            create_pr=target.create_pr or None,
            parent_commit=None if target.create_pr else remote.head,
        )
    except KeyboardInterrupt:
        remark(progress, f"interrupted: {remote.state}; next: {AGAIN}")
        raise
    except Exception:
        if target.create_pr or (commit_id := _arrived(api, target, files)) is None:
            raise
        return commit_id, target.branch  # the commit was created, but the Hub's answer was lost
    return created.oid, created.pr_revision or target.branch


def _arrived(api: "HfApi", target: Target, files: Mapping[str, Outgoing]) -> str | None:
    """Return the branch's commit if it holds `files`; None if it does not, or cannot be read."""
    try:
        head = _head(api, target)
        return head if _same(_tree(api, target, head), files) else None
    except Exception:  # the caller's error is more informative
        return None


def _verify(api: "HfApi", target: Target, commit: str, files: Mapping[str, Outgoing]) -> None:
    """Compare the files of a commit with those sent.

    Raises:
        DamagedError: a file is missing, different or unexpected.
    """
    remote = _tree(api, target, commit)
    wrong = [path for path in sorted({*remote, *files} - {*_OF_HUB}) if not _equal(remote.get(path), files.get(path))]
    if wrong:
        raise DamagedError(
            f"{target}, commit {commit[:12]}: {some(wrong)} not as sent",
            f"undo that commit at {endpoint()}/{target.repo_id}/commits/{target.branch}, then push again",
        )


def _head(api: "HfApi", target: Target) -> str:
    """Return the commit that the branch points at."""
    return str(api.model_info(target.repo_id, revision=target.branch).sha)


def _tree(api: "HfApi", target: Target, commit: str) -> "dict[str, RepoFile]":
    from huggingface_hub.hf_api import RepoFile

    entries = api.list_repo_tree(target.repo_id, recursive=True, revision=commit)
    return {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}


def _same(remote: "Mapping[str, RepoFile]", files: Mapping[str, Outgoing]) -> bool:
    """Return True if a repository holds exactly `files`."""
    return all(_equal(remote.get(path), files.get(path)) for path in {*remote, *files} - {*_OF_HUB})


def _equal(remote: "RepoFile | None", file: Outgoing | None) -> bool:
    if remote is None or file is None or remote.size != file.size:
        return False
    return remote.lfs.sha256 == file.sha256 if remote.lfs is not None else remote.blob_id == file.git_oid


def _pushed(target: Target, revision: str, commit: str, files: Mapping[str, Outgoing], *, added: bool) -> Pushed:
    page = f"{endpoint()}/{target.repo_id}"
    if revision.startswith("refs/pr/"):
        page += f"/discussions/{revision.removeprefix('refs/pr/')}"
    elif revision != "main":
        page += f"/tree/{revision}"
    nbytes = sum(file.size for file in files.values())
    return Pushed(target.repo_id, revision, endpoint(), commit, page, added, nbytes)


@contextmanager
def _translated(target: Target, state: Callable[[], str]) -> Iterator[None]:
    """Translate the errors of huggingface_hub, its HTTP client and hf_xet, which have no common base class."""
    try:
        yield
    except RegError:
        raise
    except Exception as error:
        raise translate_error(target, error, state()) from error


@contextmanager
def _progress_bars() -> Iterator[None]:
    """Show huggingface_hub's own progress bars, with rate and remaining time, only on a terminal."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about recommended metadata, and about bars that the environment controls
        if shown and not sys.stderr.isatty():
            disable_progress_bars()
        try:
            yield
        finally:
            if shown:
                enable_progress_bars()
