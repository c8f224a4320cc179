"""Proves: the evaluation on most text is the one whose score is shown for a composition."""

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
    assert widest([look, short, long]) is long
    assert widest([look, short]) is short
    assert widest([late, look, short, long]) is late  # as many tokens as the long one
    assert widest([long, late]) is late
    assert widest([]) is None
