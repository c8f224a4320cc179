"""The target of a push, its files and its result."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from registry.checkpoint.hub_download import HUB_PREFIX, HubReference
from registry.errors import InvalidInputError


@dataclass(frozen=True)
class Target(HubReference):
    """A model repository of the Hub, with the options of a push (InvalidInputError: a name is not valid on the Hub).

    Attributes:
        revision: a branch, created if it does not exist; None for the default branch.
        private: create the repository as private; refuse an existing public one.
        create_pr: propose the commit as a pull request.
        force: replace the result of an earlier push of another composition or expert.
    """

    private: bool = False
    create_pr: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if "/" not in self.repo_id:
            raise InvalidInputError(
                f"{self.repo_id!r} has no owner", f"name a user or an organisation: ORG/{self.repo_id}"
            )

    @classmethod
    def parse(cls, text: str, *, revision: str | None = None, **options: bool) -> "Target":
        """Parse `ORG/NAME` or `hf://ORG/NAME`, with or without `@REVISION` (InvalidInputError: malformed, or two)."""
        reference = HubReference.parse(text if text.startswith(HUB_PREFIX) else HUB_PREFIX + text)
        if reference.revision is not None and revision not in (None, reference.revision):
            raise InvalidInputError(f"{text} and revision {revision!r} name two revisions", "name one")
        return cls(reference.repo_id, reference.revision or revision, **options)

    @property
    def branch(self) -> str:
        """The branch that is pushed to."""
        return self.revision or "main"


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
        """The git object id; only used for files without LFS."""
        from huggingface_hub.utils.sha import git_hash

        return git_hash(self.source if isinstance(self.source, bytes) else self.source.read_bytes())


@dataclass(frozen=True)
class Commit:
    """The commit of one push.

    Attributes:
        files: path in the repository → file; all other files in the repository are deleted.
        marker: the JSON file by which this program recognises its own pushes.
        digest: the digest of the composition or expert, which the marker holds.
        message: the first line of the commit message.
        expert: the name of the expert; None for a composition.
    """

    files: Mapping[str, Outgoing]
    marker: str
    digest: str
    message: str
    expert: str | None = None

    @property
    def description(self) -> str:
        """The rest of the commit message."""
        return f"Pushed by expert-registry.\n\n{'composition' if self.expert is None else 'expert'} {self.digest}"

    def conflict_reason(self, marker: Mapping[str, Any]) -> str | None:
        """Return why the content of a repository with this marker may not be replaced, or None."""
        other = str(marker.get("digest", ""))
        if self.expert is not None and (name := str(marker.get("name"))[:40]) != self.expert:
            return f"another expert, {name}"
        if other == self.digest:
            return None
        return f"another {'composition' if self.expert is None else f'version of {self.expert}'}, {other[:12]}"

    @property
    def nbytes(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size for file in self.files.values())


@dataclass(frozen=True)
class Pushed:
    """The result of a push."""

    repo_id: str  # ORG/NAME
    revision: str  # the branch, or the pull request (`refs/pr/3`); `url` is its page
    endpoint: str  # the Hub
    commit: str  # the commit with the files
    url: str  # the page of the repository, branch or pull request
    added: bool  # False if the repository already held exactly these files
    nbytes: int
