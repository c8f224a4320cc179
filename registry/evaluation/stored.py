"""The choice among the stored evaluations of one composition."""

from collections.abc import Collection, Iterable

from store.catalog import EvaluationRecord


def widest(evaluations: Iterable[EvaluationRecord], experts: Collection[str]) -> EvaluationRecord | None:
    """Return the evaluation whose score is shown for a composition; None if there is none.

    It is the one of the most domains of its own experts; of these, the one of the fewest other domains; of these, the
    one of the most tokens; of these, the latest. A quick look at one domain or at a few windows so does not displace
    it, nor does a comparison on the domain of an expert that it lacks.

    Args:
        evaluations: evaluations of one composition, in any order.
        experts: the names of its experts. Where no evaluation has a domain of theirs, the most domains count.
    """
    found = list(evaluations)
    own = any(domain in experts for one in found for domain in one.document["data"])

    def width(evaluation: EvaluationRecord) -> tuple[int, int, int, str]:
        data = evaluation.document["data"]
        covered = sum(domain in experts for domain in data) if own else len(data)
        return covered, covered - len(data), sum(text["tokens"] for text in data.values()), evaluation.evaluated_at

    return max(found, key=width, default=None)
