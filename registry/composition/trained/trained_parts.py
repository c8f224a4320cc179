"""The parts of a mixture that a training changes, and the amount of a training."""

from collections.abc import Mapping
from typing import Any

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
    """Return the tokens that a training used, padding included: those of all windows of all its steps.

    Args:
        training: its document, with `steps`, `batch_size`, `seq_len` (as short as the model takes), and `accumulate`
            where batches are summed.
    """
    return int(training["steps"] * training["batch_size"] * training.get("accumulate", 1) * training["seq_len"])
