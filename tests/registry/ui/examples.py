"""Texts that may inject something, and compositions and evaluations that are recorded without being made."""

from pathlib import Path
from typing import Any

from registry import Registry
from registry.composition.compose import used_versions

HOSTILE = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "' onfocus='window.hacked=1' autofocus='",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:window.hacked=1",
    "\u202e\x00\x1b[31m&lt;b&gt;",
)
"""Texts that somebody may write into a tag, an alias or a label."""


FIGURES = {
    "perplexity": {"code": 5.0, "math": 6.0},
    "score": {"code": 91.25, "math": 88.0},
    "average": 89.625,
    "overall_accuracy": {"code": 0.75},
    "overall_load": {"code": 0.6, "math": 0.4},
    "load": {"code": [0.5, 0.7], "math": [0.5, 0.3]},
}


def evaluation(label: str = "test.jsonl") -> dict[str, Any]:
    """Return what an evaluation found."""
    return {
        "data": {name: {"digest": "0" * 64, "label": label, "tokens": 1234} for name in ("code", "math")},
        "experts": {},
        "settings": {"windows": 4, "seq_len": 32, "batch_size": 4, "device": None, "dtype": "float32"},
        "figures": FIGURES,
        "oracle": {"score": {"code": 95.5, "math": 90.0}, "average": 92.75},
    }


def composed(registry: Registry, folder: Path, *experts: str) -> str:
    """Record a composition without writing it, and return its digest."""
    plan = registry.plan(experts)
    registry.catalog.record_composition(plan.digest, plan.document, used_versions(plan), str(folder))
    return plan.digest
