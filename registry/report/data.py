"""The figures of a report as plain data: from the folder, the catalog, statistics and evaluations."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from registry.composition.found import OUTPUTS
from registry.composition.method import Target
from registry.evaluation.stored import FEW_TOKENS


@dataclass(frozen=True)
class MemberFigures:
    """One expert of the composition; what is not known here is None."""

    name: str
    ref: str | None  # the version in this registry
    digest: str
    tokens: int | None  # calibration tokens
    license: str | None  # its license
    drowned: str | None = None  # the reason why it is predicted to lose its own text to others, if it is
    opted_out: str | None = None  # the version that was opted out since, if it was


@dataclass(frozen=True)
class Verdict:
    """The first one or two sentences of a report, and the command that says more, if any; it begins with `reg`."""

    text: str  # one or more sentences
    command: str | None = None  # the command that mends it or says more


@dataclass(frozen=True)
class Warned:
    """A warning: what is the matter, what mends it, and the command that does, if any; it begins with `reg`."""

    text: str  # one or more sentences
    mend: str  # what mends it
    command: str | None = None  # the command that mends it or says more


@dataclass(frozen=True)
class RoutingData:
    """First choices of the routers for the tokens of each domain: counted on test text (`measured`), or predicted.

    Attributes:
        shares: domain → expert → for each of `layers` the expert's share of the domain's tokens, in [0, 1].
        weights: domain → expert → as `shares`, the expert's mean routing weight; empty if predicted, or measured by an
            early version.
    """

    measured: bool  # True if counted on test text, false if predicted from statistics
    layers: tuple[int, ...]  # layer numbers
    shares: Mapping[str, Mapping[str, Sequence[float]]]
    load: Mapping[str, Sequence[float]]  # expert → for each layer the expert's share of all tokens
    weights: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)

    def mean(self, domain: str, expert: str) -> float:
        """Return an expert's mean share of a domain over layers."""
        return fmean(self.shares[domain][expert])

    @property
    def overall_load(self) -> dict[str, float]:
        """Expert → its share of all tokens, mean over layers."""
        return {expert: sum(layers) / len(layers) for expert, layers in self.load.items() if layers}

    @property
    def accuracy(self) -> dict[str, float]:
        """Domain → mean share over layers of the expert of the same name, if there is one."""
        return {domain: self.mean(domain, domain) for domain in self.shares if domain in self.shares[domain]}

    @property
    def confused(self) -> list[tuple[str, str, float]]:
        """(domain that has an expert, other expert, its share), largest share first."""
        pairs = [
            (domain, expert, self.mean(domain, expert))
            for domain, experts in self.shares.items()
            for expert in experts
            if domain in experts and expert != domain
        ]
        return sorted(pairs, key=lambda pair: -pair[2])


@dataclass(frozen=True)
class ScoreRow:
    """Normalised scores of one model, as in `evaluation.Row`: 100 is each domain's own expert."""

    name: str
    kind: str  # composition, oracle, average, base or expert
    score: Mapping[str, float]  # domain → normalised: 100 is the domain's own expert
    perplexity: Mapping[str, float]  # domain → its perplexity
    average: float | None  # mean score, if every domain has one
    interval: Mapping[str, Sequence[float]] = field(default_factory=dict)
    average_interval: Sequence[float] | None = None  # the same of the average: the low and the high end
    ahead_of_average: Sequence[float] | None = None  # 95 % interval of the average less that of averaged weights

    @property
    def title(self) -> str:
        """Its name on pages: `averaged weights`, `base model base@1`."""
        of_base = f"base model {self.name.removeprefix('base ')}" if self.kind == "base" else self.name
        return {"average": "averaged weights", "oracle": "perfect routing"}.get(self.kind, of_base)


@dataclass(frozen=True)
class Evaluated:
    """The data of scores and measured routing."""

    at: str | None  # the time of the evaluation, ISO 8601, or None for now
    tokens: Mapping[str, int]  # domain → number of predicted tokens
    labels: Mapping[str, str]  # domain → label of its text

    @property
    def is_small(self) -> bool:
        """True if some domain has so few tokens that its score is uncertain."""
        return min(self.tokens.values(), default=FEW_TOKENS) < FEW_TOKENS


@dataclass(frozen=True)
class ActiveExperts:
    """Figures of the composition with another number of experts per token (FlexOlmo, Fig. 3)."""

    experts_per_token: int  # the number
    active_parameters: int  # weights used for one token
    score: Mapping[str, float]  # domain → normalised: 100 is the domain's own expert
    perplexity: Mapping[str, float]  # domain → its perplexity
    average: float | None  # mean score, if every domain has one


@dataclass(frozen=True)
class Training:
    """The training of an expert by `reg train-expert`, or of the composition by `reg train`;
    losses in nats per token.
    """

    name: str  # the expert, or what of the composition was trained
    steps: int  # number of steps
    tokens: int  # number of tokens
    before: float  # loss on held-out text before the training, in nats per token
    after: float  # the same after the training
    at: tuple[float, ...]  # steps, counted from 1: the middle of those that each number of `loss` is the mean of
    loss: tuple[float, ...]  # losses on the training text, at most 200


POINTS = 200  # most points of a loss curve in a report


@dataclass(frozen=True)
class Audit:
    """A stored audit of extraction: shares and similarities from 0 to 1, of `documents` that were tried.

    `similarity` is the mean of those of the best continuations, `most` the largest.
    """

    text: str  # the label of the text
    documents: int
    extracted: int
    rate: float
    similarity: float
    most: float
    prefix: int  # tokens that it was given
    continued: int  # tokens that it continued by
    at: str  # the time of the audit, ISO 8601


@dataclass(frozen=True)
class MaskJoin:
    """Two groups of experts that join, and the mean overlap of a mask of one with a mask of the other."""

    first: tuple[str, ...]  # the experts of one group
    second: tuple[str, ...]  # those of the other
    overlap: float  # mean overlap of a mask of one with a mask of the other


@dataclass(frozen=True)
class Node:
    """A node of the lineage: base, expert, composition or trained; `of` are its sources, `told` is its caption."""

    id: str  # its identifier, which others name as a source
    label: str  # its label
    kind: str  # its kind: base, expert, composition or trained
    of: tuple[str, ...] = ()  # the models it comes from
    told: str = ""  # its caption


@dataclass(frozen=True)
class ReportData:
    """The content of a report; parts without data are empty or None, and `notes` give the reasons.

    Attributes:
        overlap: (expert, expert, share of tokens that a linear router cannot tell apart).
        active_experts: ascending, from the latest evaluation with --active-experts; empty without one.
        training: the composition's own training; None of one that was not trained, or whose routers alone were.
        mask_overlap: (expert, expert, overlap of the masks that they were trained with, from 0 to 1).
        mask_joins: of a SIMoE: average linkage over 1 - overlap, the most alike first; the last one has all experts.
    """

    name: str  # the composition's folder, or its members
    digest: str
    host: str  # the composition's `model_type`
    made: str | None  # the time when it was first composed here, ISO 8601
    recipe: Mapping[str, str]  # setting → text
    members: tuple[MemberFigures, ...]  # the experts, in their order
    parameters: int | None
    active_parameters: int | None  # weights used for one token
    top_k: int | None  # experts per token
    routing: RoutingData | None  # the first choices of the tokens of each domain
    overlap: tuple[tuple[str, str, float], ...]
    scores: tuple[ScoreRow, ...]  # scores of models, the composition first
    evaluated: Evaluated | None  # the data of scores and measured routing
    active_experts: tuple[ActiveExperts, ...]
    trainings: tuple[Training, ...]  # of the members that were trained so
    audits: tuple[Audit, ...]  # the latest first
    lineage: tuple[Node, ...]  # sources of the composition, and compositions trained from it
    notes: tuple[str, ...] = ()  # missing parts, with reasons
    training: Training | None = None
    from_base: int | None = None  # the number of members, where they are copies of a base model, which have no domain
    mask_overlap: tuple[tuple[str, str, float], ...] = ()
    mask_joins: tuple[MaskJoin, ...] = ()
    to: str = "moe"  # the output of its recipe, a value of `--to`
    folder: str | None = None  # a folder that it is in, for commands; None if none is known
    indistinct: float = 1.0  # the share of an overlap from which on routing hardly separates two experts
    verdict: Verdict | None = None
    warnings: tuple[Warned, ...] = ()  # the gravest first
    colours: Mapping[str, int] = field(default_factory=dict)  # expert → number of its colour on every page

    @property
    def output(self) -> Target:
        """The method that makes it."""
        return OUTPUTS.get(self.to, OUTPUTS.default)

    @property
    def has_domains(self) -> bool:
        """True if its members stand for domains; copies of a base model do not."""
        return self.from_base is None and self.output.has_domains

    @property
    def experts(self) -> tuple[str, ...]:
        """The members' names."""
        return tuple(member.name for member in self.members)

    @property
    def kind(self) -> str:
        """Its name in sentences: `mixture`, `merged model`."""
        return self.output.noun or self.output.kind

    def row(self, kind: str) -> ScoreRow | None:
        """Return the row of the composition, the oracle, or the averaged weights of exactly its members."""
        row = next((row for row in self.scores if row.kind == kind), None)
        return None if row and kind == "average" and set(row.score) != set(self.experts) else row

    def score_of(self, kind: str) -> float | None:
        """Return the average score of `row`."""
        row = self.row(kind)
        return None if row is None else row.average

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the report: everything but colours."""
        document = asdict(self)
        del document["colours"]
        return document
