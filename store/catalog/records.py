"""What the catalog hands out: plain frozen records, detached from any session."""

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["expert", "base"]
KIND_WORDS = {"expert": "an expert", "base": "a base model"}
State = Literal["active", "withdrawn", "purged"]
Role = Literal["trunk", "mlp", "statistics", "calibration", "file"]


@dataclass(frozen=True)
class ArrayLink:
    """One array of a version: what it is to it, where its content is, and of what kind; `nbytes` uncompressed."""

    role: Role
    name: str
    digest: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class StatisticsRecord:
    """What one site's statistics were taken on."""

    site: str
    tokens: int
    saturated: int
    calibration_digest: str
    calibration_label: str


@dataclass(frozen=True)
class NewVersion:
    """All there is to say of a version before it has a number."""

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
    """One immutable registration. `content` is None once it has been purged; times are ISO 8601, UTC."""

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
        """The version as a user names it: `math@2`."""
        return f"{self.name}@{self.number}"


@dataclass(frozen=True)
class TagCount:
    """A tag, and how many active versions have it."""

    key: str
    value: str
    versions: int


@dataclass(frozen=True)
class CompositionRecord:
    """A composition that was made.

    `members` are the versions it was made from (`code@1`), a base model included; `folders` are those that the log says
    it was written to.
    """

    digest: str
    document: dict[str, Any]
    created_at: str
    members: tuple[str, ...]
    folders: tuple[str, ...]


@dataclass(frozen=True)
class EvaluationRecord:
    """What an evaluation found of a composition: data, settings and figures; `asked` is the digest of the first two."""

    composition: str
    asked: str
    evaluated_at: str
    document: dict[str, Any]


@dataclass(frozen=True)
class PushRecord:
    """A push that was begun: repository, branch or pull request, the Hub, and the commit, None where none is known."""

    repo: str
    revision: str
    endpoint: str
    commit: str | None


@dataclass(frozen=True)
class EventRecord:
    """One line of the log; `digest` is over it and the digest of the line before."""

    id: int
    at: str
    action: str
    subject: str
    details: dict[str, Any]
    digest: str


@dataclass(frozen=True)
class Chain:
    """How far the log holds: events that follow one another, the digest of the last, and which is the first not to."""

    events: int
    head: str
    broken: str | None = None
