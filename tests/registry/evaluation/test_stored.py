"""Proves: the evaluation on most text of its own experts is the one whose score is shown for a composition."""

from typing import Any

from registry.evaluation.stored import widest
from store.catalog import EvaluationRecord


def record(at: str, **tokens: int) -> EvaluationRecord:
    """Return an evaluation of so many tokens by domain."""
    document: dict[str, Any] = {"data": {domain: {"tokens": count} for domain, count in tokens.items()}}
    return EvaluationRecord("c" * 64, at, at, document)


def test_most_domains_then_most_tokens_then_the_latest() -> None:
    look, long, short = record("4", code=900), record("1", code=60, law=40), record("3", code=50, law=40)
    late = record("5", code=50, law=50)
    experts = {"code", "law"}
    assert widest([look, short, long], experts) is long
    assert widest([look, short], experts) is short
    assert widest([late, look, short, long], experts) is late  # as many tokens as the long one
    assert widest([long, late], experts) is late
    assert widest([], experts) is None


def test_domains_without_an_own_expert_do_not_count() -> None:
    own, more, foreign = record("1", code=50, law=40), record("2", code=50, law=40, math=90), record("3", math=900)
    assert widest([more, own, foreign], {"code", "law"}) is own
    assert widest([more, foreign], {"code", "law"}) is more
    assert widest([more, own, foreign], {"copy-1"}) is more  # no domain is of an own expert: the most domains
