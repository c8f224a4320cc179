"""Settings and results of an evaluation: the settings that all rows share, and one row a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from statistics import fmean, stdev
from typing import Any

from registry.evaluation.window_losses import PairedLoss
from registry.io.dtypes import AUTO


@dataclass(frozen=True)
class TestSettings:
    """Settings of scoring.

    Attributes:
        windows: windows of each domain, evenly spaced over its documents in a seeded order.
        seq_len: tokens in a window; every one but the first is predicted.
        batch_size: windows in a batch.
        device: a torch device, or None for the GPU if there is one.
        dtype: the dtype that the models compute in; `auto` is that of their weights where the device computes it fast,
            else float32.
    """

    __test__ = False  # not a test class, although its name begins with Test

    windows: int = 48
    seq_len: int = 256
    batch_size: int = 16
    device: str | None = None
    dtype: str = AUTO


@dataclass(frozen=True)
class Spread:
    """Sample standard deviations (n - 1) over the seeds of a method with randomness.

    Attributes:
        seeds: the number of seeds, 2 or more.
        perplexity: domain → deviation of the perplexity.
        score: domain → deviation of the normalised score.
        average: deviation of the average score, or None if a row has no average.
    """

    seeds: int
    perplexity: dict[str, float]
    score: dict[str, float]
    average: float | None


@dataclass(frozen=True)
class Row:
    """One model's figures.

    Attributes:
        name: its name in the table.
        perplexity: domain → perplexity, exp of the mean negative log-likelihood (nats) of a predicted token.
        score: domain → 100 · (perplexity of the domain's own expert) / perplexity, if that expert is registered.
        tokens: domain → predicted tokens, for every domain of the table.
        accuracy: of a mixture or an ensemble, which counts as one layer: domain → for each layer the share of the
            domain's tokens whose first choice is the expert of its name, in [0, 1]; only domains that are members.
        load: of these: expert → for each layer its share of all tokens, as routing weights, in [0, 1].
        parameters: weights in all, tied ones once.
        active_parameters: weights that take part in one token.
        relative_time: of a mixture, if measured: milliseconds a token, divided by those of a dense expert.
        spread: deviations over seeds, for a method with randomness; the figures are then means.
        routing: of a mixture or an ensemble: domain → expert → for each layer the share of the domain's tokens whose
            first choice is that expert, in [0, 1]; members of an ensemble with the same weight share it.
        weights: of these: domain → expert → for each layer its mean routing weight on the domain's tokens, in [0, 1].
        accuracy_by_tokens: of these: domain → number of tokens read → routing accuracy there, mean over layers;
            `32` stands for the tokens after the 16th up to the 32nd of a window.
        experts_per_token: of a mixture: the number of experts that each token goes to.
        interval: domain → [low, high], the 95 % interval of the score over windows of text (see `score_intervals`).
            Means over seeds have none.
        average_interval: the same of the average score; None without an average.
        ahead_of_average: of a folder, [low, high]: the 95 % interval of its average score less that of its experts'
            averaged weights on the same windows (see `difference_interval`); None if these were not scored.
        losses: domain → losses, window by window; none of means over seeds. They are not among its documents' figures.
    """

    name: str
    perplexity: dict[str, float]
    score: dict[str, float]
    tokens: dict[str, int] = field(default_factory=dict)
    accuracy: dict[str, list[float]] = field(default_factory=dict)
    load: dict[str, list[float]] = field(default_factory=dict)
    parameters: int | None = None
    active_parameters: int | None = None
    relative_time: float | None = field(default=None, compare=False)
    spread: Spread | None = None
    routing: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    weights: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    accuracy_by_tokens: dict[str, dict[str, float]] = field(default_factory=dict)
    experts_per_token: int | None = None
    interval: dict[str, list[float]] = field(default_factory=dict)
    average_interval: list[float] | None = None
    ahead_of_average: list[float] | None = None
    losses: dict[str, PairedLoss] = field(default_factory=dict, compare=False, repr=False)

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


def over_seeds(rows: Sequence[Row]) -> Row:
    """Combine the rows of a method under several seeds: means with their spread, or a single row as it is."""
    first = rows[0]
    if len(rows) == 1:
        return first
    averages = [row.average for row in rows if row.average is not None]
    times = [row.relative_time for row in rows if row.relative_time is not None]
    spread = Spread(
        seeds=len(rows),
        perplexity=_each(stdev, [row.perplexity for row in rows]),
        score=_each(stdev, [row.score for row in rows]),
        average=stdev(averages) if len(averages) == len(rows) else None,
    )
    return replace(
        first,
        perplexity=_each(fmean, [row.perplexity for row in rows]),
        score=_each(fmean, [row.score for row in rows]),
        accuracy=_each(_by_layer, [row.accuracy for row in rows]),
        routing={domain: _each(_by_layer, [row.routing[domain] for row in rows]) for domain in first.routing},
        weights={domain: _each(_by_layer, [row.weights[domain] for row in rows]) for domain in first.weights},
        accuracy_by_tokens={
            domain: _each(fmean, [row.accuracy_by_tokens[domain] for row in rows])
            for domain in first.accuracy_by_tokens
        },
        load=_each(_by_layer, [row.load for row in rows]),
        relative_time=fmean(times) if times else None,
        spread=spread,
        interval={},  # that of one seed says nothing of the others
        average_interval=None,
        ahead_of_average=None,
        losses={},
    )


def _each(combine: Callable[[list[Any]], Any], tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: combine([table[key] for table in tables]) for key in tables[0]}


def _by_layer(runs: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(layer) for layer in zip(*runs, strict=True)]
