"""The target of a push, its files and its result."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from registry.checkpoint.hub_download import HUB_PREFIX, HubReference
from registry.errors import InvalidInputError


@dataclass(frozen=True)
class Target:
    """A model repository of the Hub, with the options of a push.

    Attributes:
        repo_id: `ORG/NAME`.
        revision: a branch, created if it does not exist; None for the default branch.
        private: create the repository as private; refuse an existing public one.
        create_pr: propose the commit as a pull request.
        force: replace the result of an earlier push of another composition or expert.

    Raises:
        InvalidInputError: `repo_id` or `revision` is not a valid name on the Hub.
    """

    repo_id: str
    revision: str | None = None
    private: bool = False
    create_pr: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        HubReference(self.repo_id, self.revision)
        if "/" not in self.repo_id:
            raise InvalidInputError(
                f"{self.repo_id!r} has no owner", f"name a user or an organisation: ORG/{self.repo_id}"
            )

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        revision: str | None = None,
        private: bool = False,
        create_pr: bool = False,
        force: bool = False,
    ) -> "Target":
        """Parse `ORG/NAME` or `hf://ORG/NAME`, with an optional `@REVISION`; the arguments are the attributes.

        Raises:
            InvalidInputError: `text` is malformed, or two revisions are given.
        """
        reference = HubReference.parse(text if text.startswith(HUB_PREFIX) else HUB_PREFIX + text)
        if reference.revision is not None and revision not in (None, reference.revision):
            raise InvalidInputError(f"{text} and revision {revision!r} name two revisions", "name one")
        return cls(reference.repo_id, reference.revision or revision, private, create_pr, force)

    @property
    def branch(self) -> str:
        """The branch that is pushed to."""
        return self.revision or "main"

    def __str__(self) -> str:
        return str(HubReference(self.repo_id, self.revision))


@dataclass(frozen=True)
class Outgoing:
    """One file to push: its local path or its bytes, and the SHA-256 that it must have."""

    source: Path | bytes
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> "Outgoing":
        """Return a file from bytes in memory."""
        return cls(data, hashlib.sha256(data).hexdigest())

    @cached_property
    def size(self) -> int:
        """Size in bytes."""
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size

    @cached_property
    def git_oid(self) -> str:
        """The git object id: SHA-1 over `blob SIZE`, a zero byte and the content; only used for files without LFS."""
        data = self.source if isinstance(self.source, bytes) else self.source.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


ConflictReason = Callable[[Mapping[str, Any]], str | None]
"""Function from the marker in a repository to the reason why its content may not be replaced, or None."""


@dataclass(frozen=True)
class Commit:
    """The commit of one push.

    Attributes:
        files: path in the repository → file; all other files in the repository are deleted.
        marker: the JSON file by which this program recognises its own pushes.
        conflict_reason: called with the marker in the repository, if it exists.
        message: the first line of the commit message.
        description: the rest of the commit message.
    """

    files: Mapping[str, Outgoing]
    marker: str
    conflict_reason: ConflictReason
    message: str
    description: str

    @property
    def nbytes(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size for file in self.files.values())


@dataclass(frozen=True)
class Pushed:
    """The result of a push.

    Attributes:
        repo_id: the repository.
        revision: the branch, or the pull request (`refs/pr/3`).
        endpoint: the address of the Hub.
        commit: the commit with the files.
        url: the page of the repository, branch or pull request.
        added: False if the repository already held exactly these files.
        nbytes: the size of all files.
    """

    repo_id: str
    revision: str
    endpoint: str
    commit: str
    url: str
    added: bool
    nbytes: int
