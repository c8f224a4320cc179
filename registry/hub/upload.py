"""Upload of files as one commit of a repository of the Hub, with a comparison of what arrived.

Large files are sent first and stay on the Hub if the connection breaks: the next push does not send them again. Only
the commit makes them visible, all at once.
"""

import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from registry.composition.card import CARD
from registry.errors import ConflictError, DamagedError, InvalidInputError, NotFoundError, RegError, StorageError
from registry.hub.hub_errors import AGAIN, LOGIN, bad_card, endpoint, translate_error
from registry.hub.target import Commit, Outgoing, Pushed, Target
from registry.io.display import some
from registry.io.limits import JSON_BYTES
from registry.io.untrusted import json_object
from registry.progress import Progress, remark

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

_OF_HUB = (".gitattributes",)
_BLANK = {*_OF_HUB, "README.md", "LICENSE", "LICENSE.md", ".gitignore"}
"""The files of a repository that was just created on the Hub's web page."""


def check_account(target: Target) -> None:
    """Check the account's token with the Hub, before anything is composed or read.

    (InvalidInputError: offline mode is set; StorageError: no token, a rejected or read-only one, or no Hub.)
    """
    from huggingface_hub import HfApi, constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise InvalidInputError(
            f"HF_HUB_OFFLINE is set, and pushing to {target} needs the Hub",
            "unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, then type the command again",
        )
    if get_token() is None:
        raise StorageError(f"there is no token, and pushing to {target} needs one", LOGIN)
    with _translated(target, lambda: "nothing was sent"):
        account = HfApi().whoami()
    role = account.get("auth", {}).get("accessToken", {}).get("role")
    if role == "read":
        raise StorageError(f"the token may only read, and pushing to {target} writes", LOGIN)


def upload(target: Target, commit: Commit, on_start: Callable[[], None], progress: Progress) -> Pushed:
    """Push the files of `commit` to `target`, and compare what arrived; the account was checked.

    `on_start` is called after all checks, when the repository exists, just before files are sent (NotFoundError: there
    is no such revision, or no repository for a pull request; ConflictError: it holds something else, or was changed by
    another push; DamagedError, StorageError: other files arrived than were sent; the Hub or the connection fails).
    """
    remote, files = _Remote(target), commit.files
    with _translated(target, lambda: remote.state), _progress_bars():
        remote.read()
        is_same = not _differing(remote.files, files)
        if remote.files and not is_same:
            remote.check_replaceable(commit)
        if remote.head is not None and not target.create_pr and is_same:
            return _pushed(target, target.branch, remote.head, commit, added=False)
        if CARD in files:
            _check_card(files[CARD], remote.state)
        remote.prepare()
        on_start()
        with progress(f"pushing to {target}", commit.nbytes, "B") as advance:
            commit_id, revision = remote.send(commit, progress)
            advance(commit.nbytes)
        remote.state = f"commit {commit_id[:12]} exists"
        if wrong := _differing(remote.tree(commit_id), files):
            raise DamagedError(
                f"{target}, commit {commit_id[:12]}: {some(wrong)} not as sent",
                f"undo that commit at {endpoint()}/{target.repo_id}/commits/{target.branch}, then push again",
            )
    return _pushed(target, revision, commit_id, commit, added=True)


class _Remote:
    """A target on the Hub: the commit of its branch (None: there is no branch), its files, and its state in words."""

    def __init__(self, target: Target) -> None:
        from huggingface_hub import HfApi

        self._api, self._target = HfApi(), target
        self.exists = False
        self.head: str | None = None
        self.files: dict[str, RepoFile] = {}
        self.state = "nothing was sent"

    def read(self) -> None:
        """Read the state from the Hub."""
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

        target = self._target
        try:
            info = self._api.model_info(target.repo_id)
        except GatedRepoError:
            raise
        except RepositoryNotFoundError as error:
            if target.create_pr:
                raise NotFoundError(
                    f"there is no repository {target.repo_id} to propose a change to", "omit --create-pr to create it"
                ) from error
            return
        self.exists = True
        self.state = f"{target} is unchanged"
        if target.private and not info.private:
            raise ConflictError(
                f"{target.repo_id} exists and is public: everyone can see what is pushed to it",
                f"make it private in its settings, {endpoint()}/{target.repo_id}/settings, or choose another name",
            )
        try:
            self._read_branch()
        except RevisionNotFoundError:
            is_fixed = target.branch.startswith("refs/") or re.fullmatch("[0-9a-f]{40}", target.branch)
            if target.create_pr or is_fixed:  # no branch: a pull request or a commit, which cannot be created
                raise
            self.head = None

    def check_replaceable(self, commit: Commit) -> None:
        """Raise ConflictError if this program did not push the content, or it is another composition or expert."""
        target, marker = self._target, commit.marker
        if set(self.files) <= _BLANK:
            return
        elsewhere = "choose another name or --revision, or propose the change: --create-pr"
        if marker not in self.files or self.files[marker].size > JSON_BYTES:
            if target.create_pr:
                return
            listed = some(sorted(set(self.files) - _BLANK)).rpartition(" ")[0]
            raise ConflictError(
                f"{target} is taken: it holds {listed}, and no {marker} of an earlier push; {self.state}", elsewhere
            )
        file = self._api.hf_hub_download(target.repo_id, marker, revision=self.head)
        why = commit.conflict_reason(json_object(Path(file).read_bytes(), f"{target}/{marker}"))
        if why is not None and not (target.force or target.create_pr):
            raise ConflictError(
                f"{target} holds {why}; {self.state}", f"replace it with a new commit: --force; or {elsewhere}"
            )

    def prepare(self) -> None:
        """Create the repository and the branch if they do not exist."""
        target = self._target
        if not self.exists:
            self._api.create_repo(target.repo_id, private=target.private or None, repo_type="model")
            self.exists = True
            self.state = f"{target.repo_id} was created and holds no model yet; files that arrived are not sent again"
        else:
            self.state = f"{target} is unchanged; files that arrived are not sent again"
        if self.head is None and target.revision not in (None, "main"):
            self._api.create_branch(target.repo_id, branch=target.branch, exist_ok=True)
        if self.head is None:
            self._read_branch()

    def send(self, commit: Commit, progress: Progress) -> tuple[str, str]:
        """Send the files, and return the commit and its branch or pull request."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        target, files = self._target, commit.files
        operations: list[Any] = [
            CommitOperationDelete(path) for path in sorted(self.files) if path not in files and path not in _OF_HUB
        ]
        operations += [CommitOperationAdd(path, file.source) for path, file in sorted(files.items())]
        try:
            created = self._api.create_commit(
                target.repo_id,
                operations,
                commit_message=commit.message,
                commit_description=commit.description,
                revision=target.revision,
                create_pr=target.create_pr or None,
                parent_commit=None if target.create_pr else self.head,
            )
        except KeyboardInterrupt:
            remark(progress, f"interrupted: {self.state}; next: {AGAIN}")
            raise
        except Exception:
            if target.create_pr or not self._has_arrived(files):
                raise
            return str(self.head), target.branch  # the commit was created, but the Hub's answer was lost
        return created.oid, created.pr_revision or target.branch

    def tree(self, commit: str) -> "dict[str, RepoFile]":
        """Return path → file of a commit."""
        from huggingface_hub.hf_api import RepoFile

        entries = self._api.list_repo_tree(self._target.repo_id, recursive=True, revision=commit)
        return {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}

    def _read_branch(self) -> None:
        self.head = str(self._api.model_info(self._target.repo_id, revision=self._target.branch).sha)
        self.files = self.tree(self.head)

    def _has_arrived(self, files: Mapping[str, Outgoing]) -> bool:
        """Read the branch again, and tell whether it holds `files`; False if it cannot be read."""
        try:
            self._read_branch()
        except Exception:  # the caller's error is more informative
            return False
        return not _differing(self.files, files)


def _check_card(card: Outgoing, state: str) -> None:
    """Let the Hub validate the card's metadata before anything is created or sent (CheckpointError: it rejects it)."""
    from huggingface_hub import ModelCard

    text = card.source if isinstance(card.source, bytes) else card.source.read_bytes()
    try:
        ModelCard(text.decode(), ignore_metadata_errors=True).validate()
    except ValueError as error:
        raise bad_card(str(error), state) from error


def _differing(remote: "Mapping[str, RepoFile]", files: Mapping[str, Outgoing]) -> list[str]:
    """Return the paths of files that are missing, different or unexpected in a repository, sorted."""
    return [path for path in sorted({*remote, *files} - {*_OF_HUB}) if not _equal(remote.get(path), files.get(path))]


def _equal(remote: "RepoFile | None", file: Outgoing | None) -> bool:
    if remote is None or file is None or remote.size != file.size:
        return False
    return remote.lfs.sha256 == file.sha256 if remote.lfs is not None else remote.blob_id == file.git_oid


def _pushed(target: Target, revision: str, commit_id: str, commit: Commit, *, added: bool) -> Pushed:
    page = f"{endpoint()}/{target.repo_id}"
    if revision.startswith("refs/pr/"):
        page += f"/discussions/{revision.removeprefix('refs/pr/')}"
    elif revision != "main":
        page += f"/tree/{revision}"
    return Pushed(target.repo_id, revision, endpoint(), commit_id, page, added, commit.nbytes)


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
