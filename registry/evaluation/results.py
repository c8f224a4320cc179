"""Settings and results of evaluations, without torch: the settings, one row a model, losses by window, schedules."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from statistics import fmean, stdev
from typing import Any

from registry.errors import InvalidInputError
from registry.io.dtypes import AUTO

MOST_BLOCKS = 200  # most blocks of windows that a domain's losses are stored in
_LARGEST_LOSS = 700.0  # losses from here on have an exp(loss) that is too large for a float
_DIGITS = 4  # decimals of a stored loss, in nats: a score moves by less than a millionth


@dataclass(frozen=True)
class TestSettings:
    """Settings of scoring.

    Attributes:
        dtype: the dtype that the models compute in; `auto` is that of their weights where the device computes it fast,
            else float32.
    """

    __test__ = False  # not a test class, although its name begins with Test

    windows: int = 48  # windows of each domain, evenly spaced over its documents in a seeded order
    seq_len: int = 256  # tokens in a window; every one but the first is predicted
    batch_size: int = 16
    device: str | None = None  # a torch device, or None for the GPU if there is one
    dtype: str = AUTO


@dataclass(frozen=True)
class ExtractionSettings:
    """Settings of an audit; the defaults are those of FlexOlmo §5.3 but for `documents`, 10,000 there, and `top_p`.

    It samples by top-p too, and prints no value of p.
    """

    documents: int = 100  # documents that are tried, drawn by `seed` from those that are long enough
    prefix: int = 32  # P, tokens of a document that the model is given
    continued: int = 256  # C, tokens that it continues by
    top_k: int = 50
    samples: int = 10  # S, continuations of a document
    threshold: float = 0.9  # least normalised Levenshtein similarity, on tokens, of an extracted document, from 0 to 1
    seed: int = 0
    device: str | None = None  # a torch device; None for the GPU if there is one
    top_p: float = 1.0  # samples are of the fewest tokens that have so much probability together, above 0

    def __post_init__(self) -> None:
        for name in ("documents", "prefix", "continued", "top_k", "samples"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} is {getattr(self, name)}, the least is 1", "give 1 or more")
        for name in ("top_p", "threshold"):
            if not 0 < getattr(self, name) <= 1:
                reason = f"{name} is {getattr(self, name)}, it must be more than 0 and at most 1"
                raise InvalidInputError(reason, "give 0.9")

    def document(self) -> dict[str, Any]:
        """Return the settings; without a `top_p` of 1, as they were stored before there was one."""
        return {name: value for name, value in asdict(self).items() if (name, value) != ("top_p", 1.0)}


@dataclass(frozen=True)
class DomainLoss:
    """The loss of a model on one domain's text.

    Attributes:
        own: as `nats`, of the domain's own expert on the same windows; None if it was not compared with one.
    """

    nats: tuple[float, ...]  # the sum of the negative log-likelihoods of each window, in nats; one value a window
    tokens: tuple[int, ...]  # predicted tokens of each window
    own: tuple[float, ...] | None = None

    @property
    def mean(self) -> float:
        """Loss in nats a token; NaN or infinite if that of some window is."""
        return sum(self.nats) / sum(self.tokens)

    @property
    def perplexity(self) -> float:
        """exp of the mean; infinity if that is too large for a float."""
        return math.exp(self.mean) if self.mean < _LARGEST_LOSS or math.isnan(self.mean) else math.inf

    def blocks(self) -> "DomainLoss":
        """Join neighbouring windows, so that at most `MOST_BLOCKS` are left: what is stored does not grow with text."""
        size = -(-len(self.nats) // MOST_BLOCKS)
        starts = range(0, len(self.nats), size)

        def joined(nats: Sequence[float]) -> tuple[float, ...]:
            return tuple(round(math.fsum(nats[start : start + size]), _DIGITS) for start in starts)

        tokens = tuple(sum(self.tokens[start : start + size]) for start in starts)
        return DomainLoss(joined(self.nats), tokens, None if self.own is None else joined(self.own))


@dataclass(frozen=True)
class Spread:
    """Sample standard deviations (n - 1) of figures of the same names over 2 seeds or more; None without an average."""

    seeds: int
    perplexity: dict[str, float]
    score: dict[str, float]
    average: float | None


@dataclass(frozen=True)
class Row:
    """One model's figures.

    Attributes:
        perplexity: domain → perplexity, exp of the mean negative log-likelihood (nats) of a predicted token.
        score: domain → 100 · (perplexity of the domain's own expert) / perplexity, if that expert is registered.
        accuracy: of a mixture or an ensemble, which counts as one layer: domain → for each layer the share of the
            domain's tokens whose first choice is the expert of its name, in [0, 1]; only domains that are members.
        load: of these: expert → for each layer its share of all tokens, as routing weights, in [0, 1].
        relative_time: of a mixture, if measured: milliseconds a token, divided by those of a dense expert.
        routing: of a mixture or an ensemble: domain → expert → for each layer the share of the domain's tokens whose
            first choice is that expert, in [0, 1]; members of an ensemble with the same weight share it.
        weights: of these: domain → expert → for each layer its mean routing weight on the domain's tokens, in [0, 1].
        accuracy_by_tokens: of these: domain → number of tokens read → routing accuracy there, mean over layers;
            `32` stands for the tokens after the 16th up to the 32nd of a window.
        interval: domain → [low, high], the 95 % interval of the score over windows of text (see `score_intervals`).
            Means over seeds have none.
        ahead_of_average: of a folder, [low, high]: the 95 % interval of its average score less that of its experts'
            averaged weights on the same windows (see `difference_interval`); None if these were not scored.
        losses: domain → losses, window by window; none of means over seeds. They are not among its documents' figures.
    """

    name: str
    perplexity: dict[str, float]
    score: dict[str, float]
    tokens: dict[str, int] = field(default_factory=dict)  # domain → predicted tokens, for every domain of the table
    accuracy: dict[str, list[float]] = field(default_factory=dict)
    load: dict[str, list[float]] = field(default_factory=dict)
    parameters: int | None = None  # weights in all, tied ones once
    active_parameters: int | None = None  # weights that take part in one token
    relative_time: float | None = field(default=None, compare=False)
    spread: Spread | None = None  # deviations over seeds, for a method with randomness; the figures are then means
    routing: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    weights: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    accuracy_by_tokens: dict[str, dict[str, float]] = field(default_factory=dict)
    experts_per_token: int | None = None  # of a mixture: the number of experts that each token goes to
    interval: dict[str, list[float]] = field(default_factory=dict)
    average_interval: list[float] | None = None  # the same of the average score; None without an average
    ahead_of_average: list[float] | None = None
    losses: dict[str, DomainLoss] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Row":
        """Return the row of a stored document, which may lack figures that were added later; its spread is left out."""
        keys = {one.name for one in fields(cls)} - {"spread", "losses"}
        return cls(**{key: document[key] for key in keys & document.keys()})

    @property
    def average(self) -> float | None:
        """Mean score over the domains, as in the DUME paper's tables; None if a domain has no score."""
        complete = self.score and len(self.score) == len(self.tokens or self.perplexity)
        return sum(self.score.values()) / len(self.score) if complete else None

    @property
    def overall_accuracy(self) -> dict[str, float]:
        """Domain → routing accuracy, the mean over the layers."""
        return {domain: fmean(layers) for domain, layers in self.accuracy.items()}

    @property
    def overall_load(self) -> dict[str, float]:
        """Expert → share of all tokens, the mean over the layers."""
        return {expert: fmean(layers) for expert, layers in self.load.items()}

    def document(self) -> dict[str, Any]:
        """Return every figure, in the format of `--json` and the catalog."""
        return {
            **{key: value for key, value in asdict(replace(self, losses={})).items() if key != "losses"},
            "average": self.average,
            "overall_accuracy": self.overall_accuracy,
            "overall_load": self.overall_load,
        }


@dataclass(frozen=True)
class Continual:
    """The figures of a schedule of T experts."""

    schedule: tuple[str, ...]  # the experts' names, in the order in which they join; each is a domain
    perplexity: list[list[float]]  # perplexity[i][j], j ≤ i, of the composition of the first i + 1 experts on domain j
    score: list[list[float]]  # R[i][j] = 100 · (perplexity of expert j alone) / perplexity[i][j]

    @property
    def average(self) -> float:
        """Mean of R over the domains after the last step."""
        return fmean(self.score[-1])

    @property
    def forgetting(self) -> float | None:
        """Mean over the earlier domains j of max_{i<T-1} R[i][j] - R[T-1][j] (Chaudhry et al. 2018, section 3).

        None if there is no earlier domain; negative if later experts helped.
        """
        last = len(self.score) - 1
        lost = [max(self.score[i][j] for i in range(j, last)) - self.score[last][j] for j in range(last)]
        return fmean(lost) if lost else None

    @property
    def backward_transfer(self) -> float | None:
        """Mean over the earlier domains j of R[T-1][j] - R[j][j] (Lopez-Paz & Ranzato 2017, eq. 3), or None."""
        last = len(self.score) - 1
        gained = [self.score[last][j] - self.score[j][j] for j in range(last)]
        return fmean(gained) if gained else None

    def until(self, step: int) -> "Continual":
        """Return the figures as they were after `step` experts, from 1 to T."""
        return Continual(self.schedule[:step], self.perplexity[:step], self.score[:step])

    def document(self) -> dict[str, Any]:
        """Return every figure as `--json` shows it."""
        return {
            **asdict(self),
            "average": self.average,
            "forgetting": self.forgetting,
            "backward_transfer": self.backward_transfer,
        }


_AVERAGED = ("perplexity", "score", "accuracy", "routing", "weights", "accuracy_by_tokens", "load")


def over_seeds(rows: Sequence[Row]) -> Row:
    """Combine the rows of a method under several seeds: means with their spread, or a single row as it is."""
    first = rows[0]
    if len(rows) == 1:
        return first
    averages = [row.average for row in rows if row.average is not None]
    times = [row.relative_time for row in rows if row.relative_time is not None]

    def each(combine: Callable[[list[float]], float], name: str) -> Any:
        return _each(combine, [getattr(row, name) for row in rows])

    average = stdev(averages) if len(averages) == len(rows) else None
    return replace(
        first,
        **{name: each(fmean, name) for name in _AVERAGED},
        relative_time=fmean(times) if times else None,
        spread=Spread(len(rows), each(stdev, "perplexity"), each(stdev, "score"), average),
        interval={},  # that of one seed says nothing of the others
        average_interval=None,
        ahead_of_average=None,
        losses={},
    )


def _each(combine: Callable[[list[float]], float], values: Sequence[Any]) -> Any:
    """Combine the numbers at each place of tables or lists of the same form."""
    if isinstance(values[0], Mapping):
        return {key: _each(combine, [value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], list):
        return [_each(combine, layer) for layer in zip(*values, strict=True)]
    return combine(list(values))


def stored_losses(losses: Mapping[str, DomainLoss]) -> dict[str, dict[str, list[Any]]]:
    """Return the losses of a composition in the catalog's format: domain → tokens, composition, own.

    Each is a list of one value a block; a domain without an own expert has no `own`.
    """
    document: dict[str, dict[str, list[Any]]] = {}
    for domain, loss in losses.items():
        blocks = loss.blocks()
        document[domain] = {"tokens": list(blocks.tokens), "composition": list(blocks.nats)}
        if blocks.own is not None:
            document[domain]["own"] = list(blocks.own)
    return document


def losses_in(document: Mapping[str, Any], domain: str) -> DomainLoss | None:
    """Return the losses on a domain in the document of an evaluation; None of one that stores none."""
    stored = document.get("losses", {}).get(domain)
    if stored is None:
        return None
    own = tuple(stored["own"]) if "own" in stored else None
    return DomainLoss(tuple(stored["composition"]), tuple(stored["tokens"]), own)
