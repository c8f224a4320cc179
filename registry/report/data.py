"""The figures of a report, as plain data: what is in the folder, in the catalog, in statistics and in evaluations."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any


@dataclass(frozen=True)
class MemberFigures:
    """One expert of the composition.

    Attributes:
        name: the expert.
        ref: the version here, or None where it is not registered here, or was opted out.
        digest: its content digest.
        tokens: calibration tokens; None where it is not here.
        license: its license, where it has one.
        drowned: why it is drowned out, as far as is foretold.
    """

    name: str
    ref: str | None
    digest: str
    tokens: int | None
    license: str | None
    drowned: str | None = None


@dataclass(frozen=True)
class RoutingData:
    """Where the tokens of each domain go first.

    Attributes:
        measured: counted on test text; otherwise foretold from statistics.
        layers: their numbers.
        shares: domain → expert → for each of these layers its share of the domain's tokens, in [0, 1].
        load: expert → for each layer its share of all tokens.
    """

    measured: bool
    layers: tuple[int, ...]
    shares: Mapping[str, Mapping[str, Sequence[float]]]
    load: Mapping[str, Sequence[float]]

    def mean(self, domain: str, expert: str) -> float:
        """Return an expert's share of a domain, mean over layers."""
        return fmean(self.shares[domain][expert])

    @property
    def accuracy(self) -> dict[str, float]:
        """Domain → share that goes to the expert of its name, mean over layers, where there is one."""
        return {domain: self.mean(domain, domain) for domain in self.shares if domain in self.shares[domain]}

    @property
    def confused(self) -> list[tuple[str, str, float]]:
        """(domain, other expert, its share), the largest first."""
        pairs = [
            (domain, expert, self.mean(domain, expert))
            for domain, experts in self.shares.items()
            for expert in experts
            if expert != domain
        ]
        return sorted(pairs, key=lambda pair: -pair[2])


@dataclass(frozen=True)
class ScoreRow:
    """Normalised scores of one model: 100 is each domain's own expert.

    Attributes:
        name: of the model.
        kind: composition, oracle, average, base or expert.
        score: domain → score.
        perplexity: domain → perplexity.
        average: mean score, where all domains have one.
    """

    name: str
    kind: str
    score: Mapping[str, float]
    perplexity: Mapping[str, float]
    average: float | None


@dataclass(frozen=True)
class Evaluated:
    """What scores and measured routing stand on.

    Attributes:
        at: when, ISO 8601, or None for now.
        tokens: domain → predicted tokens.
        labels: domain → what its text is called.
    """

    at: str | None
    tokens: Mapping[str, int]
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Curve:
    """Held-out error and accuracy of ridge strengths at one layer."""

    layer: int
    lams: tuple[float, ...]
    errors: tuple[float, ...]
    accuracies: tuple[float, ...]
    used: float


@dataclass(frozen=True)
class Node:
    """Something in the lineage: base, expert, composition or trained; `of` are the nodes it comes from."""

    id: str
    label: str
    kind: str
    of: tuple[str, ...] = ()
    told: str = ""


@dataclass(frozen=True)
class ReportData:
    """Everything that a report shows; a part that there is no figure for is None or empty, and `notes` say why.

    Attributes:
        name: what the composition is called: its folder, or its members.
        digest: the composition's.
        host: its `model_type`.
        made: when it was first made here, ISO 8601.
        recipe: setting → text.
        members: in the order of the experts.
        parameters: weights in all.
        active_parameters: weights that take part in one token.
        top_k: experts per token.
        routing: where tokens go.
        overlap: (expert, expert, share of tokens that routing cannot tell apart).
        curves: of the ridge strength.
        scores: of the composition first.
        evaluated: what scores stand on.
        lineage: where it comes from, and what comes from it.
        notes: what is not there, and why.
    """

    name: str
    digest: str
    host: str
    made: str | None
    recipe: Mapping[str, str]
    members: tuple[MemberFigures, ...]
    parameters: int | None
    active_parameters: int | None
    top_k: int | None
    routing: RoutingData | None
    overlap: tuple[tuple[str, str, float], ...]
    curves: tuple[Curve, ...]
    scores: tuple[ScoreRow, ...]
    evaluated: Evaluated | None
    lineage: tuple[Node, ...]
    notes: tuple[str, ...] = ()

    @property
    def experts(self) -> tuple[str, ...]:
        """The members' names."""
        return tuple(member.name for member in self.members)

    def score_of(self, kind: str) -> float | None:
        """Return the average score of the first row of a kind."""
        return next((row.average for row in self.scores if row.kind == kind), None)

    def document(self) -> dict[str, Any]:
        """Return every figure as `--json` shows it."""
        return asdict(self)
