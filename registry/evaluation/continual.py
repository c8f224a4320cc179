"""Continual learning: the score of each domain after every expert that joins, and the forgetting on the way."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from registry.evaluation.benchmark import Benchmark
from registry.evaluation.methods import Compose
from registry.evaluation.scoring import Model
from registry.io.work_dirs import temporary_folder


@dataclass(frozen=True)
class Continual:
    """The figures of a schedule of T experts.

    Attributes:
        schedule: the experts' names, in the order in which they join; each is a domain.
        perplexity: perplexity[i][j], j ≤ i, of the composition of the first i + 1 experts on domain j.
        score: R[i][j] = 100 · (perplexity of expert j alone) / perplexity[i][j].
    """

    schedule: tuple[str, ...]
    perplexity: list[list[float]]
    score: list[list[float]]

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


def continual(schedule: Sequence[str], benchmark: Benchmark, compose: Sequence[Compose]) -> Continual:
    """Measure a schedule.

    Args:
        schedule: domains in the order in which their experts join; `benchmark` has text and an expert for each.
        benchmark: the windows, and the experts alone.
        compose: for each step, a function that composes the experts so far.

    Raises:
        InvalidInputError: the experts of a step cannot be composed.
        CheckpointError: a loss is NaN or infinite.
    """

    def perplexities(model: Model, domains: Sequence[str]) -> list[float]:
        windows = {domain: benchmark.windows[domain] for domain in domains}
        by_domain = benchmark.losses_of(model, windows)
        return [by_domain[domain].perplexity for domain in domains]

    own = []
    for domain in schedule:
        member = benchmark.experts[domain]
        with benchmark.dense(member.version.ref, [member]) as model:
            own += perplexities(model, [domain])
    rows = []
    for step, compose_step in enumerate(compose, start=1):
        with temporary_folder(benchmark.work) as temporary:
            folder = temporary / "composed"
            compose_step({}, folder)
            rows.append(perplexities(benchmark.open(f"step {step}", folder), schedule[:step]))
    return Continual(tuple(schedule), rows, [[100 * (o / p) for o, p in zip(own, row, strict=False)] for row in rows])
