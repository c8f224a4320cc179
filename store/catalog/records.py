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
    tokens: int  # calibration tokens
    saturated: int  # activations that were clipped at their bound
    calibration_digest: str  # the digest of the calibration tokens
    calibration_label: str  # the label of the calibration


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
    """One immutable registration."""

    id: int
    name: str
    kind: Kind  # the kind of version
    number: int  # its number under that name
    digest: str
    content: dict[str, Any] | None  # the content of its digest, besides its arrays (docs/formats.md); None once purged
    parameters: int
    state: State  # the state; only active versions can be composed
    created_at: str  # the time when it was registered, ISO 8601, UTC
    withdrawn_at: str | None  # the time when it was opted out
    purged_at: str | None  # the time when its arrays were deleted
    aliases: tuple[str, ...]  # its aliases, without the name
    protected: tuple[str, ...]  # those of its aliases that are protected
    tags: dict[str, str]  # its tags
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
    """A composition that was made; two of the `members`, of different folders, may have the same content."""

    digest: str  # its digest
    document: dict[str, Any]  # the content of the digest: recipe, host, members, base (docs/formats.md)
    created_at: str  # the time when it was first composed, ISO 8601, UTC
    members: tuple[str, ...]  # the versions it was made from, including a base model
    folders: tuple[str, ...]  # the folders it was written to, according to the log
    latest: tuple[str, ...] = ()  # those of `members` that its latest folder was made from, according to the log

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

    repo: str  # ORG/NAME
    revision: str  # the branch, or the pull request
    endpoint: str  # the Hub
    commit: str | None  # the commit; None if the push is not known to have ended


@dataclass(frozen=True)
class EventRecord:
    """One line of the log; `digest` covers the line and the digest of the line before it."""

    id: int  # its number
    at: str  # the time, ISO 8601, UTC
    action: str  # the action
    subject: str  # a version, a composition's digest, or empty
    details: dict[str, Any]  # details, depending on the action; `actor` says who did it
    digest: str  # the digest of the event and the event before it

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
