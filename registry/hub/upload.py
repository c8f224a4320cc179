"""Uploading: files become one commit of a repository of the Hub, or none, and what arrived is compared.

Large files go first, and stay on the Hub's side where the connection breaks: the next push does not send them again.
Only the commit makes them visible, all at once.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from registry.composition.cards.pushed import CARD
from registry.errors import ConflictError, DamagedError, NotFoundError, RegError, StorageError
from registry.hub.hub_errors import AGAIN, LOGIN, bad_card, endpoint, offline, translate_error
from registry.hub.target import Commit, Outgoing, Pushed, Target
from registry.io.limits import JSON_BYTES
from registry.io.strict_json import json_object
from registry.io.text import some
from registry.progress import Progress, remark

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

_OF_HUB = (".gitattributes",)
_BLANK = (*_OF_HUB, "README.md", "LICENSE", "LICENSE.md", ".gitignore")
"""What a repository has that was made on the Hub's page, and nothing else yet."""


@dataclass
class _Place:
    """What is at a target.

    Attributes:
        exists: there is such a repository.
        head: the commit that the branch is at; None where there is no such branch.
        files: every file there, by its path.
        state: what is there, for messages.
    """

    exists: bool
    head: str | None
    files: "dict[str, RepoFile]"
    state: str


def check_account(target: Target) -> None:
    """Ask the Hub who is asking, so that nothing is composed or read in vain.

    Raises:
        InvalidInputError: the Hub may not be asked.
        StorageError: there is no token, it is not accepted or may only read, or the Hub cannot be reached.
    """
    from huggingface_hub import HfApi, constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise offline(target)
    if get_token() is None:
        raise StorageError(f"there is no token, and pushing to {target} needs one", LOGIN)
    with _telling(target, lambda: "nothing was sent"):
        account = HfApi().whoami()
    role = account.get("auth", {}).get("accessToken", {}).get("role")
    if role == "read":
        raise StorageError(f"the token may only read, and pushing to {target} writes", LOGIN)


def upload(
    target: Target,
    commit: Commit,
    begun: Callable[[], None],
    progress: Progress,
) -> Pushed:
    """Push the files of `commit` to `target`, and compare what arrived.

    Args:
        target: the repository and branch.
        commit: what is uploaded.
        begun: called when everything was checked and the repository is there, just before files are sent.
        progress: told what goes on.

    Raises:
        InvalidInputError: the Hub may not be asked.
        NotFoundError: there is no such revision, or no repository to propose a change to.
        ConflictError: something else is there, or somebody else pushes too.
        DamagedError: what arrived is not what was sent.
        StorageError: the Hub or the connection refused.
    """
    from huggingface_hub import HfApi

    check_account(target)
    api, files = HfApi(), commit.files
    place = _Place(False, None, {}, "nothing was sent")
    with _telling(target, lambda: place.state), _bars():
        _look(api, target, place)
        if place.files and not _same(place.files, files):
            _check_replaceable(api, target, place, commit)
        if place.head is not None and not target.create_pr and _same(place.files, files):
            return _pushed(target, target.branch, place.head, files, added=False)
        if CARD in files:
            _check_card(files[CARD], place)
        _prepare(api, target, place)
        begun()
        with progress(f"pushing to {target}", commit.nbytes, "B") as advance:
            commit_id, revision = _commit(api, target, place, commit, progress)
            advance(commit.nbytes)
        place.state = f"commit {commit_id[:12]} is there"
        _verify(api, target, commit_id, files)
    return _pushed(target, revision, commit_id, files, added=True)


def _check_card(card: Outgoing, place: _Place) -> None:
    """Have the Hub check the card's metadata, before anything is made or sent.

    Raises:
        CheckpointError: it does not accept it.
    """
    from huggingface_hub import ModelCard

    text = card.source if isinstance(card.source, bytes) else card.source.read_bytes()
    try:
        ModelCard(text.decode(), ignore_metadata_errors=True).validate()
    except ValueError as error:
        raise bad_card(str(error), place.state) from error


def _look(api: "HfApi", target: Target, place: _Place) -> None:
    """Find out what is at the target."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        info = api.model_info(target.repo_id)
    except GatedRepoError:
        raise
    except RepositoryNotFoundError as error:
        if target.create_pr:
            raise NotFoundError(
                f"there is no repository {target.repo_id} to propose a change to", "drop --create-pr, which makes it"
            ) from error
        return
    place.exists = True
    place.state = f"{target} is as it was"
    if target.private and not info.private:
        raise ConflictError(
            f"{target.repo_id} is there already, and public: whatever is pushed to it is seen by everyone",
            f"make it private in its settings, {endpoint()}/{target.repo_id}/settings, or choose another name",
        )
    try:
        place.head = _head(api, target)
        place.files = _tree(api, target, place.head)
    except RevisionNotFoundError:
        if target.create_pr or _is_no_branch(target.branch):
            raise
        place.head = None


def _is_no_branch(revision: str) -> bool:
    """Tell whether a revision cannot be made: a commit, or a pull request."""
    return revision.startswith("refs/") or (len(revision) == 40 and set(revision) <= set("0123456789abcdef"))


def _check_replaceable(api: "HfApi", target: Target, place: _Place, commit: Commit) -> None:
    """Refuse to replace what this program did not push, or pushed of something else.

    Raises:
        ConflictError: it may not be replaced.
    """
    if set(place.files) <= {*_BLANK}:
        return
    marker = commit.marker
    elsewhere = "choose another name, another --revision, or propose it: --create-pr"
    if marker not in place.files or place.files[marker].size > JSON_BYTES:
        if target.create_pr:
            return
        listed = some(sorted(set(place.files) - {*_BLANK})).rpartition(" ")[0]
        raise ConflictError(
            f"{target} is taken: it holds {listed}, and no {marker} that this program pushed; {place.state}", elsewhere
        )
    found = api.hf_hub_download(target.repo_id, marker, revision=place.head)
    why = commit.conflict_reason(json_object(Path(found).read_bytes(), f"{target}/{marker}"))
    if why is not None and not (target.force or target.create_pr):
        raise ConflictError(
            f"{target} holds {why}; {place.state}", f"replace it by a new commit: --force; or {elsewhere}"
        )


def _prepare(api: "HfApi", target: Target, place: _Place) -> None:
    """Make the repository and the branch, where there are none."""
    if not place.exists:
        api.create_repo(target.repo_id, private=target.private or None, repo_type="model")
        place.exists = True
        place.state = (
            f"{target.repo_id} was made and holds no model yet; files that arrived are kept there, and not sent again"
        )
    else:
        place.state = f"{target} is as it was; files that arrived are kept there, and not sent again"
    if place.head is None and target.revision not in (None, "main"):
        api.create_branch(target.repo_id, branch=target.branch, exist_ok=True)
    if place.head is None:
        place.head = _head(api, target)
        place.files = _tree(api, target, place.head)


def _commit(
    api: "HfApi",
    target: Target,
    place: _Place,
    commit: Commit,
    progress: Progress,
) -> tuple[str, str]:
    """Send everything, and return the commit and what holds it (a branch or a pull request)."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    files = commit.files
    operations: list[Any] = [
        CommitOperationDelete(path) for path in sorted(place.files) if path not in files and path not in _OF_HUB
    ]
    operations += [CommitOperationAdd(path, file.source) for path, file in sorted(files.items())]
    try:
        done = api.create_commit(
            target.repo_id,
            operations,
            commit_message=commit.message,
            commit_description=commit.description,
            revision=target.revision,
            create_pr=target.create_pr or None,
            parent_commit=None if target.create_pr else place.head,
        )
    except KeyboardInterrupt:
        remark(progress, f"interrupted: {place.state}; next: {AGAIN}")
        raise
    except Exception:
        if target.create_pr or (commit_id := _arrived(api, target, files)) is None:
            raise
        return commit_id, target.branch  # the commit was made, and its answer lost
    return done.oid, done.pr_revision or target.branch


def _arrived(api: "HfApi", target: Target, files: Mapping[str, Outgoing]) -> str | None:
    """Return the commit that the branch is at, if that holds `files`; None where it does not, or cannot be told."""
    try:
        head = _head(api, target)
        return head if _same(_tree(api, target, head), files) else None
    except Exception:  # the one before says more
        return None


def _verify(api: "HfApi", target: Target, commit: str, files: Mapping[str, Outgoing]) -> None:
    """Compare what a commit holds with what was sent.

    Raises:
        DamagedError: a file is missing, is another, or is there and should not be.
    """
    found = _tree(api, target, commit)
    wrong = [path for path in sorted({*found, *files} - {*_OF_HUB}) if not _equal(found.get(path), files.get(path))]
    if wrong:
        raise DamagedError(
            f"{target}, commit {commit[:12]}: {some(wrong)} not what was sent",
            f"undo that commit at {endpoint()}/{target.repo_id}/commits/{target.branch}, then push again",
        )


def _head(api: "HfApi", target: Target) -> str:
    """Return the commit that the branch is at."""
    return str(api.model_info(target.repo_id, revision=target.branch).sha)


def _tree(api: "HfApi", target: Target, commit: str) -> "dict[str, RepoFile]":
    from huggingface_hub.hf_api import RepoFile

    entries = api.list_repo_tree(target.repo_id, recursive=True, revision=commit)
    return {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}


def _same(found: "Mapping[str, RepoFile]", files: Mapping[str, Outgoing]) -> bool:
    """Tell whether a repository holds `files` and nothing else."""
    return all(_equal(found.get(path), files.get(path)) for path in {*found, *files} - {*_OF_HUB})


def _equal(found: "RepoFile | None", file: Outgoing | None) -> bool:
    if found is None or file is None or found.size != file.size:
        return False
    return found.lfs.sha256 == file.sha256 if found.lfs is not None else found.blob_id == file.git_oid


def _pushed(target: Target, revision: str, commit: str, files: Mapping[str, Outgoing], *, added: bool) -> Pushed:
    page = f"{endpoint()}/{target.repo_id}"
    if revision.startswith("refs/pr/"):
        page += f"/discussions/{revision.removeprefix('refs/pr/')}"
    elif revision != "main":
        page += f"/tree/{revision}"
    nbytes = sum(file.size for file in files.values())
    return Pushed(target.repo_id, revision, endpoint(), commit, page, added, nbytes)


@contextmanager
def _telling(target: Target, state: Callable[[], str]) -> Iterator[None]:
    """Turn every error of huggingface_hub, its HTTP client and hf_xet, which have no common root, into a message."""
    try:
        yield
    except RegError:
        raise
    except Exception as error:
        raise translate_error(target, error, state()) from error


@contextmanager
def _bars() -> Iterator[None]:
    """Show huggingface_hub's own bars, which tell rate and time left, on a terminal alone."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of metadata that the Hub would like, and of bars that the environment rules
        if shown and not sys.stderr.isatty():
            disable_progress_bars()
        try:
            yield
        finally:
            if shown:
                enable_progress_bars()
