"""Continual learning: what each domain is worth after every expert that joins, and how much is lost on the way."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from registry.evaluation.benchmark import Benchmark
from registry.evaluation.methods import Compose
from registry.evaluation.scoring import Model, open_model, perplexities_of
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

        None where there is no earlier domain; below 0 where later experts helped.
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


def continual(schedule: Sequence[str], yardstick: Benchmark, compose: Sequence[Compose]) -> Continual:
    """Return the figures of a schedule.

    Args:
        schedule: domains in the order in which their experts join; `yardstick` has text and an expert for each.
        yardstick: what they are measured by.
        compose: for each step, what composes the experts so far.

    Raises:
        InvalidInputError: some cannot be composed.
        CheckpointError: a loss is NaN or infinite.
    """

    def perplexities(model: Model, domains: Sequence[str]) -> list[float]:
        windows = {domain: yardstick.windows[domain] for domain in domains}
        found = perplexities_of(model, windows, yardstick.settings, yardstick.progress)
        return [found[domain] for domain in domains]

    own = []
    for domain in schedule:
        member = yardstick.experts[domain]
        own += perplexities(yardstick.dense(member.version.ref, [member]), [domain])
    rows = []
    for step, composing in enumerate(compose, start=1):
        with temporary_folder() as temporary:
            folder = temporary / "composed"
            composing({}, folder)
            model = open_model(f"step {step}", folder, yardstick.settings)
        rows.append(perplexities(model, schedule[:step]))
    return Continual(tuple(schedule), rows, [[100 * (o / p) for o, p in zip(own, row, strict=False)] for row in rows])
