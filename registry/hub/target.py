"""Where something is pushed to, and what is to arrive there."""

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
    """A model repository of the Hub, and how it is pushed to.

    Attributes:
        repo_id: `ORG/NAME`.
        revision: a branch, which is made where there is none; None for the default one.
        private: make the repository private; of one that is there already, insist that it is.
        create_pr: propose the commit as a pull request.
        force: replace what an earlier push put there, if it is something else.

    Raises:
        InvalidInputError: the Hub has no repositories or branches of such names.
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
                f"{self.repo_id!r} does not say whose it is", f"name a user or an organisation: ORG/{self.repo_id}"
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
        """Return what `ORG/NAME`, `hf://ORG/NAME` or either with `@REVISION` refers to; arguments as attributes.

        Raises:
            InvalidInputError: it is malformed, or names two revisions.
        """
        given = HubReference.parse(text if text.startswith(HUB_PREFIX) else HUB_PREFIX + text)
        if given.revision is not None and revision not in (None, given.revision):
            raise InvalidInputError(f"{text} and revision {revision!r} name two revisions", "name one")
        return cls(given.repo_id, given.revision or revision, private, create_pr, force)

    @property
    def branch(self) -> str:
        """What is pushed to."""
        return self.revision or "main"

    def __str__(self) -> str:
        return str(HubReference(self.repo_id, self.revision))


@dataclass(frozen=True)
class Outgoing:
    """One file to push: its path on this disk or its bytes, and the SHA-256 that it must have."""

    source: Path | bytes
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> "Outgoing":
        """Return a file that is in memory."""
        return cls(data, hashlib.sha256(data).hexdigest())

    @cached_property
    def size(self) -> int:
        """Its bytes."""
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size

    @cached_property
    def git_oid(self) -> str:
        """What git calls it: the SHA-1 of `blob SIZE`, a zero byte and its content; read where it is not large."""
        data = self.source if isinstance(self.source, bytes) else self.source.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


ConflictReason = Callable[[Mapping[str, Any]], str | None]
"""From the marker in a repository to the reason why its content may not be replaced, None where it may."""


@dataclass(frozen=True)
class Commit:
    """What one push uploads.

    Attributes:
        files: path in the repository → file; the repository then holds these and no others.
        marker: the JSON file by which this program recognises what it pushed.
        conflict_reason: called with the marker in the repository, where it holds anything.
        message: the first line of the commit's message.
        description: the rest of it.
    """

    files: Mapping[str, Outgoing]
    marker: str
    conflict_reason: ConflictReason
    message: str
    description: str

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


@dataclass(frozen=True)
class Pushed:
    """What a push did.

    Attributes:
        repo_id: the repository.
        revision: the branch, or the pull request (`refs/pr/3`).
        endpoint: the Hub.
        commit: the commit that holds it.
        url: where a person sees it.
        added: False where all of it was there already.
        nbytes: of all files.
    """

    repo_id: str
    revision: str
    endpoint: str
    commit: str
    url: str
    added: bool
    nbytes: int
