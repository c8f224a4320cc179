"""Output of commands that train a composition."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cli.output import done, note, print_json

if TYPE_CHECKING:
    from registry.training import Trained  # with torch


def print_trained(trained: Trained, what: str, folder: Path, out: Path, as_json: bool) -> None:
    """Print the digest of a trained composition, and its loss on held-out tokens before and after.

    Args:
        trained: the result.
        what: what was trained, in words.
        folder: the folder of the parent.
        out: the folder that was written.
        as_json: print JSON.
    """
    if as_json:
        print_json(
            trained.document
            | {"digest": trained.digest, "loss": [trained.before, trained.after], "tokens": trained.tokens, "out": out}
        )
        return
    done(
        trained.digest,
        f"trained {what} of {folder} into {out}  {trained.digest}",
        f"  loss on {trained.tokens:,} held-out tokens: {trained.before:.4f} before, {trained.after:.4f} after",
    )
    if trained.after >= trained.before:
        note(f"  the loss did not improve: keep {folder}, or train on more data, longer, or with a smaller --lr")
