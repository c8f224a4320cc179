"""Trained compositions: the parts of a mixture that a training changes, and the model card after it."""

import re
from collections.abc import Mapping
from typing import Any

from registry.composition.card import PURE, TOLD_APART, UNTUNED
from registry.composition.recipe.fields import FROM_BASE

ROUTERS, MLPS, ALL, PROJECTORS = "routers", "mlps", "all", "projectors"
NAMED = {
    ROUTERS: ("routers alone", "The routers were then trained on the language-model loss; no other weight was."),
    MLPS: (
        "the experts' MLPs and the routers",
        "The experts' MLPs and the routers were then trained on the language-model loss; no other weight was.",
    ),
    ALL: ("all weights", "All weights were then trained on the language-model loss."),
    PROJECTORS: (
        "the projectors and the router",
        "The projectors and the router were then trained on the language-model loss; no other weight was.",
    ),
}
"""What trained → its names in a row and in a sentence of the model card."""

EQUAL_COPIES = "its experts are equal, and it gives what its base model gives, until it is trained: reg train"
"""Remark on a mixture of copies of a base model whose MLPs nothing has trained."""


def trained_part(training: Mapping[str, Any]) -> str:
    """Return what a training changed, from its document; that of `reg train-router` does not say it."""
    return str(training.get("train", ROUTERS))


def trained_tokens(training: Mapping[str, Any]) -> int:
    """Return the tokens of all windows of all steps of a training, padding included, from its document."""
    return int(training["steps"] * training["batch_size"] * training.get("accumulate", 1) * training["seq_len"])


_OF_COPIES = {
    "composed in closed form by": "which began as copies of one base model and were trained together, by",
    f"- {EQUAL_COPIES}\n": "",
    UNTUNED: "It knows what its base model knows, and what it was trained on.",
    f"- {TOLD_APART}\n": "",
    PURE: "The registry that it was trained with holds the tensors that changed. It makes it again from them and from "
    "its base\nmodel, and holds every byte against it:",
}
"""Text of the card of untrained copies → that of trained ones."""


def trained_card(page: str, document: Mapping[str, Any], digest: str) -> str:
    """Return the parent's model card with the new digest and a note on the training."""
    training, of_copies = document["training"], FROM_BASE in document
    part = trained_part(training)
    trained, sentence = NAMED[part]
    amount = f", {trained_tokens(training):,} tokens" if of_copies else ""
    row = (
        f"| composition | `{digest}` |\n"
        f"| training | {trained}, {training['steps']} steps{amount} on data `{training['data']}`, "
        f"from composition `{document['parent']}` |\n"
    )
    page = page.replace("composed in closed form, without training, by", "composed in closed form by")
    page = page.replace("), without\ntraining, by expert-registry.", "), by expert-registry.")  # several architectures
    if of_copies and part != ROUTERS:
        for before, after in _OF_COPIES.items():
            page = page.replace(before, after)
    page, count = re.subn(r"^\| composition \| `[0-9a-f]{64}` \|\n", lambda _: row, page, count=1, flags=re.MULTILINE)
    table = "" if count else f"\n| | |\n|---|---|\n{row}"
    return f"{page}{table}\n{sentence}\n"
