"""Records that the catalog returns: frozen dataclasses, detached from any session."""

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["expert", "base"]
KIND_WORDS = {"expert": "an expert", "base": "a base model"}
State = Literal["active", "withdrawn", "purged"]
Role = str
"""What an array is: `trunk`, `mlp`, `statistics`, `calibration`, `file`, `trained`, or the key of a joint training."""


def spoken(at: str) -> str:
    """Return a time as a sentence has it: `2026-11-25 12:39 UTC`."""
    return f"{at[:16].replace('T', ' ')} UTC"


@dataclass(frozen=True)
class ArrayLink:
    """One array of a version, or of a trained composition (role `trained`); `nbytes` is the uncompressed size."""

    role: Role
    name: str
    digest: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class StatisticsRecord:
    """The data that one site's statistics were collected on."""

    site: str
    tokens: int
    saturated: int
    calibration_digest: str
    calibration_label: str


@dataclass(frozen=True)
class NewVersion:
    """A version to be registered, which has no number yet."""

    name: str
    kind: Kind
    digest: str
    content: dict[str, Any]
    parameters: int
    arrays: tuple[ArrayLink, ...]
    statistics: tuple[StatisticsRecord, ...] = ()
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class VersionRecord:
    """One immutable registration. A purge sets `content` to None; times are ISO 8601, UTC."""

    id: int
    name: str
    kind: Kind
    number: int
    digest: str
    content: dict[str, Any] | None
    parameters: int
    state: State
    created_at: str
    withdrawn_at: str | None
    purged_at: str | None
    aliases: tuple[str, ...]
    tags: dict[str, str]
    statistics: tuple[StatisticsRecord, ...]

    @property
    def ref(self) -> str:
        """The reference of the version: `math@2`."""
        return f"{self.name}@{self.number}"


@dataclass(frozen=True)
class TagCount:
    """A tag, and the number of active versions that have it."""

    key: str
    value: str
    versions: int


@dataclass(frozen=True)
class CompositionRecord:
    """A composition that was made.

    `members` are the versions it was made from (`code@1`), including a base model: in any of its folders, as two
    versions may have the same content. `folders` are the folders that it was written to, and `latest` the versions that
    the last of them was made from, both according to the log.
    """

    digest: str
    document: dict[str, Any]
    created_at: str
    members: tuple[str, ...]
    folders: tuple[str, ...]
    latest: tuple[str, ...] = ()

    @property
    def current(self) -> tuple[str, ...]:
        """The versions that its latest folder was made from; all of its versions if the log does not name them."""
        return tuple(ref for ref in self.members if ref in self.latest) or self.members


@dataclass(frozen=True)
class EvaluationRecord:
    """Scores or an audit of a composition, with data and settings; `asked` is the digest of data and settings."""

    composition: str
    asked: str
    evaluated_at: str
    document: dict[str, Any]


@dataclass(frozen=True)
class PushRecord:
    """A push: repository, branch or pull request, the Hub, and the commit (None if its end was not recorded)."""

    repo: str
    revision: str
    endpoint: str
    commit: str | None


@dataclass(frozen=True)
class EventRecord:
    """One line of the log; `digest` covers the line and the digest of the line before it."""

    id: int
    at: str
    action: str
    subject: str
    details: dict[str, Any]
    digest: str

    @property
    def actor(self) -> str | None:
        """The name of who did it; None in events of early versions."""
        named = self.details.get("actor") if isinstance(self.details, dict) else None
        return named if isinstance(named, str) else None


@dataclass(frozen=True)
class Chain:
    """The intact part of the log: number of events, digest of the last, and the first event that breaks the chain."""

    events: int
    head: str
    broken: str | None = None
