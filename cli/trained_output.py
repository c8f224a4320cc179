"""Output of commands that train a composition."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.next_steps import evaluating
from cli.output import count, done, next_step, note, print_json, short
from registry.composition.trained.trained_parts import trained_tokens

if TYPE_CHECKING:
    from registry.training import Trained  # with torch


def amount(training: Mapping[str, Any], tokens: int | None) -> str:
    """Return how much a training used, as `3 steps on 192 tokens, 150 asked for`.

    Args:
        training: its document, as of `trained_tokens`.
        tokens: those that were asked for; None where steps were.
    """
    used = trained_tokens(training)
    different = "" if tokens in (None, used) else f", {tokens:,} asked for"
    return f"{count(training['steps'], 'step')} on {count(used, 'token')}{different}"


def print_trained(
    trained: Trained, what: str, folder: Path, out: Path, as_json: bool, *, tokens: int | None = None
) -> None:
    """Print the digest of a trained composition, the amount of training, and the loss on held-out tokens.

    Args:
        trained: the result.
        what: what was trained, in words.
        folder: the folder of the parent.
        out: the folder that was written.
        as_json: print JSON.
        tokens: training tokens that were asked for; None where steps were.
    """
    training = trained.document["training"]
    if as_json:
        print_json(
            trained.document
            | {
                "digest": trained.digest,
                "loss": [trained.before, trained.after],
                "tokens": trained.tokens,
                "trained_tokens": trained_tokens(training),
                "out": out,
            }
        )
        return
    done(
        trained.digest,
        f"trained {what} of {folder} into {out}  {short(trained.digest)}",
        f"  {amount(training, tokens)}",
        f"  loss on {trained.tokens:,} held-out tokens: {trained.before:.4f} before, {trained.after:.4f} after",
    )
    if trained.after >= trained.before:
        note(f"  the loss did not improve: keep {folder}, or train on more data, longer, or with a smaller --lr")
    next_step(evaluating([folder, out], [member["name"] for member in trained.document.get("members", ())]))
