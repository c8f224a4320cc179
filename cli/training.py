"""Options and output that the commands which train share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.next_steps import evaluating
from cli.options import advanced, choice, integer, number, options
from cli.output import count, done, next_step, note, print_json, short
from registry.composition.trained import trained_tokens
from registry.training.processes import is_worker

if TYPE_CHECKING:
    from registry.training import Trained  # with torch

Command = TypeVar("Command", bound=Callable[..., Any])


def training_options(
    *,
    by_tokens: bool = True,
    lr: float | str = 3e-4,
    warmup: str = "a twentieth of all steps",
    weight_decay: float | str = 0.1,
    decays: str = "Weight decay of matrices.",
    balance: float | str | None = None,
) -> Callable[[Command], Command]:
    """Return a decorator that adds the amount of training, the settings of AdamW and the seed.

    A default that is a text is the program's to choose: it stands in the help, and the option's value is None.

    Args:
        by_tokens: the amount is --tokens, with --accumulate; otherwise --steps.
        lr: default of --lr.
        warmup: default of --warmup, in words.
        weight_decay: default of --weight-decay.
        decays: help of --weight-decay.
        balance: default of --balance; None for a command without it.
    """
    tokens, steps = (
        integer("--tokens", "Training tokens in total.", 409_600),
        integer("--steps", "Number of batches.", 200),
    )
    balancing = [] if balance is None else [_rate("--balance", balance, "Weight of the load-balance loss (BTX).", True)]
    return options(
        tokens if by_tokens else steps,
        integer("--seq-len", "Tokens per window.", 256, least=2),
        integer("--batch-size", "Windows per batch.", 8),
        *([integer("--accumulate", "Batches per step of AdamW.", 1, advanced=True)] if by_tokens else []),
        _rate("--lr", lr, "The highest learning rate of AdamW.", False),
        integer("--warmup", f"Steps of linear warm-up. [default: {warmup}]", least=0, advanced=True),
        _rate("--weight-decay", weight_decay, decays, True),
        *balancing,
        integer("--seed", "Seed of windows and their order.", 0, least=0, advanced=True),
    )


def _rate(name: str, default: float | str, text: str, is_advanced: bool) -> Callable[[Command], Command]:
    if isinstance(default, str):
        return number(name, f"{text} [default: {default}]", advanced=is_advanced)
    return number(name, text, default, advanced=is_advanced)


def weight_products(routers: str = "", *, fsdp: bool = True) -> Callable[[Command], Command]:
    """Return a decorator that adds --device, --dtype and --fsdp of a training of weights.

    Args:
        routers: what `auto` is for routers alone, where they can train alone.
        fsdp: add --fsdp, for several processes.
    """
    fast = f"bfloat16 where the device is fast in it{', and ' if routers else ''}{routers}"
    help_ = f"The dtype of the products: bfloat16, float32, or auto: {fast}. Weights and moments stay in float32."
    sharding = "Shard weights, gradients and moments over the processes that torchrun started."
    return options(
        advanced("--device", metavar="DEVICE", help="cpu or cuda. [default: the GPU if there is one]"),
        choice("--dtype", ["auto", "bfloat16", "float32"], help_, "auto", advanced=True),
        *([advanced("--fsdp", is_flag=True, help=sharding)] if fsdp else []),
    )


def trained_as_worker() -> bool:
    """Train with the main process if this one is its worker; print nothing, and exit with 1 if that failed.

    Returns:
        True in a worker, for which nothing is left to do.
    """
    if not is_worker():
        return False
    from registry.training import run_worker

    if not run_worker():
        click.get_current_context().exit(1)
    return True


def amount(training: Mapping[str, Any], tokens: int | None) -> str:
    """Return how much a training used, as `3 steps on 192 tokens, 150 asked for`.

    Args:
        training: its document, as of `trained_tokens`.
        tokens: those that were asked for; None where steps were.
    """
    used = trained_tokens(training)
    different = "" if tokens in (None, used) else f", {tokens:,} asked for"
    return f"{count(training['steps'], 'step')} on {count(used, 'token')}{different}"


def result_document(training: Mapping[str, Any], before: float, after: float, tokens: int) -> dict[str, Any]:
    """Return the fields of JSON that the results of all trainings have.

    Args:
        training: its document, as of `trained_tokens`.
        before: mean loss on held-out tokens before the training, in nats.
        after: the same after it.
        tokens: number of held-out tokens.
    """
    return {"loss": [before, after], "tokens": tokens, "trained_tokens": trained_tokens(training)}


def loss_line(before: float, after: float, tokens: int, where: str = "") -> str:
    """Return the loss on held-out tokens before and after a training, in words; `where` says more of the tokens."""
    return f"  loss on {tokens:,} held-out tokens{where}: {before:.4f} before, {after:.4f} after"


def note_of_loss(before: float, after: float, keep: str = "") -> bool:
    """Return True if the loss did not improve, and remark on it; `keep` is what to do other than to train again."""
    if after >= before:
        note(f"  the loss did not improve: {keep}train on more data, longer, or with a smaller --lr")
    return after >= before


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
            | {"digest": trained.digest}
            | result_document(training, trained.before, trained.after, trained.tokens)
            | {"out": out}
        )
        return
    done(
        trained.digest,
        f"trained {what} of {folder} into {out}  {short(trained.digest)}",
        f"  {amount(training, tokens)}",
        loss_line(trained.before, trained.after, trained.tokens),
    )
    note_of_loss(trained.before, trained.after, f"keep {folder}, or ")
    next_step(evaluating([folder, out], [member["name"] for member in trained.document.get("members", ())]))
