"""Hostile texts, compositions and evaluations that are recorded without being made, and parts of pages."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from registry import Registry
from registry.composition import Recipe
from registry.ui.site import url
from tests.pages import Page, Pages

HOSTILE = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "' onfocus='window.hacked=1' autofocus='",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:window.hacked=1",
    "\u202e\x00\x1b[31m&lt;b&gt;",
)
"""Texts that somebody may write into a tag, an alias or a label."""

CONTENT: dict[str, Any] = {"family": "llama", "license": None}
"""What the content of versions has that are rows alone."""

SHARES = {"code": {"code": [0.75], "math": [0.25]}, "math": {"code": [0.5], "math": [0.5]}}
OF_ALL: dict[str, Any] = {
    "perplexity": {"code": 5.0, "math": 6.0},
    "accuracy": {"code": [0.75], "math": [0.5]},
    "load": {"code": [0.6], "math": [0.4]},
    "tokens": {"code": 1234, "math": 1234},
    "parameters": 1000,
    "active_parameters": 500,
}
FIGURES = OF_ALL | {
    "name": "moe",
    "score": {"code": 91.25, "math": 88.0},
    "average": 89.625,
    "overall_accuracy": {"code": 0.75},
    "overall_load": {"code": 0.6, "math": 0.4},
    "routing": SHARES,
    "weights": SHARES,
}
ORACLE = OF_ALL | {
    "name": "moe oracle",
    "score": {"code": 95.5, "math": 90.0},
    "average": 92.75,
    "overall_accuracy": {},
    "overall_load": {},
}


def evaluation(
    scores: Mapping[str, float] | None = None,
    tokens: int | Mapping[str, int] = 1234,
    *,
    digest: str = "0",
    label: str = "test.jsonl",
    figures: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    **document: Any,
) -> dict[str, Any]:
    """Return what an evaluation found, with all that a report reads.

    Args:
        scores: domain → score, of which average and perplexities are made; by default those of `FIGURES`.
        tokens: tokens of each domain, or domain → tokens.
        digest: a digit of the digest of each text.
        label: the label of each text.
        figures: further figures of the composition.
        settings: other settings.
        document: other parts of the document.
    """
    own = dict(FIGURES)
    if scores is not None:
        perplexity = {domain: 500 / score for domain, score in scores.items()}
        own |= {"score": dict(scores), "average": sum(scores.values()) / len(scores), "perplexity": perplexity}
    counts = dict.fromkeys(own["score"], tokens) if isinstance(tokens, int) else tokens
    usual = {"windows": 4, "seq_len": 32, "batch_size": 4, "device": None, "dtype": "float32"}
    return {
        "data": {name: {"digest": digest * 64, "label": label, "tokens": count} for name, count in counts.items()},
        "experts": {},
        "settings": usual | dict(settings or {}),
        "figures": own | dict(figures or {}),
        "oracle": ORACLE if scores is None else None,
    } | document


def record(registry: Registry, composition: str, *scored: Any, asked: str = "1", **changes: Any) -> None:
    """Record an evaluation of a composition (arguments as of `evaluation`); `asked` tells it from others."""
    registry.catalog.record_evaluation(composition, asked * 64, evaluation(*scored, **changes))


def recorded(registry: Registry, plan: Any, folder: object, **changes: Any) -> str:
    """Record the composition of a plan without writing it, with changes of its document, and return its digest."""
    document = plan.document | changes
    digest = sha256(repr(document).encode()).hexdigest() if changes else plan.digest
    registry.catalog.record_composition(digest, document, plan.versions, str(folder))
    return str(digest)


def composed(registry: Registry, folder: object, *experts: str, recipe: Recipe | None = None) -> str:
    """Record a composition without writing it, and return its digest."""
    return recorded(registry, registry.plan(experts, recipe), folder)


def shown(pages: Pages, *path: str, **query: object) -> Page:
    """Return a page as the browser with the secret sees it."""
    return Page(pages.ask(url(*path, **query), headers=pages.cookie).text)


def values(page: Page, of: str = "value", tag: str = "input") -> list[str]:
    """Return what an attribute of the elements of a page is, in their order."""
    return [value for element, name, value in page.attributes if (element, name) == (tag, of) and value]


def commands(page: Page) -> list[str]:
    """Return the commands of a page that can be copied."""
    return [value for _, name, value in page.attributes if name == "data-copy" and value]
