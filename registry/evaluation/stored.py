"""The choice among the stored evaluations of one composition."""

from collections.abc import Iterable

from store.catalog import EvaluationRecord


def widest(evaluations: Iterable[EvaluationRecord]) -> EvaluationRecord | None:
    """Return the evaluation whose score is shown for a composition; None if there is none.

    It is the one of the most domains; of these, the one of the most tokens; of these, the latest. A quick look at one
    domain, or at a few windows, so does not displace it.

    Args:
        evaluations: evaluations of one composition, in any order.
    """
    return max(evaluations, key=_width, default=None)


def _width(evaluation: EvaluationRecord) -> tuple[int, int, str]:
    data = evaluation.document["data"]
    return len(data), sum(text["tokens"] for text in data.values()), evaluation.evaluated_at
