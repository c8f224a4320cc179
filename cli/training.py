"""Options and output that the commands which train share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.next_steps import evaluating
from cli.options import choice, flag, integer, number, option, options
from cli.output import Decorator, done, next_step, note, printed_json
from registry.composition.trained import trained_tokens
from registry.io.display import counted, short

if TYPE_CHECKING:
    from registry.training import Trained  # with torch
    from registry.training.from_base import TrainedFromBase


def training_options(
    *,
    by_tokens: bool = True,
    lr: float | str = 3e-4,
    warmup: str = "a twentieth of all steps",
    weight_decay: float | str = 0.1,
    decays: str = "Weight decay of matrices.",
    balance: float | str | None = None,
) -> Decorator:
    """Return a decorator that adds the amount of training, the settings of AdamW and the seed.

    The amount is --tokens, with --accumulate, or --steps. A default that is a text is the program's to choose: it
    stands in the help, and the option's value is None. `decays` is the help of --weight-decay; None as `balance` leaves
    --balance out.
    """
    most = integer("--tokens", "Training tokens in total.", 409_600)
    accumulating = [integer("--accumulate", "Batches per step of AdamW.", 1, advanced=True)]
    if not by_tokens:
        most, accumulating = integer("--steps", "Number of batches.", 200), []
    balancing = []
    if balance is not None:
        balancing = [_rate("--balance", balance, "Weight of the load-balance loss (BTX).", advanced=True)]
    return options(
        most,
        integer("--seq-len", "Tokens per window.", 256, least=2),
        integer("--batch-size", "Windows per batch.", 8),
        *accumulating,
        _rate("--lr", lr, "The highest learning rate of AdamW."),
        integer("--warmup", f"Steps of linear warm-up. [default: {warmup}]", least=0, advanced=True),
        _rate("--weight-decay", weight_decay, decays, advanced=True),
        *balancing,
        integer("--seed", "Seed of windows and their order.", 0, least=0, advanced=True),
    )


def _rate(name: str, default: float | str, text: str, *, advanced: bool = False) -> Decorator:
    if isinstance(default, str):
        return number(name, f"{text} [default: {default}]", advanced=advanced)
    return number(name, text, default, advanced=advanced)


def weight_products(routers: str = "", *, fsdp: bool = True) -> Decorator:
    """Return a decorator that adds --device, --dtype and --fsdp of a training of weights.

    `routers` is what `auto` is for routers alone, where they can train alone.
    """
    fast = f"bfloat16 where the device is fast in it{', and ' if routers else ''}{routers}"
    products = f"The dtype of the products: bfloat16, float32, or auto: {fast}. Weights and moments stay in float32."
    sharding = "Shard weights, gradients and moments over the processes that torchrun started."
    return options(
        option("--device DEVICE", "cpu or cuda. [default: the GPU if there is one]", advanced=True),
        choice("--dtype", ["auto", "bfloat16", "float32"], products, "auto", advanced=True),
        *([flag("--fsdp", sharding, advanced=True)] if fsdp else []),
    )


def amount(trained: Trained | TrainedFromBase, tokens: int | None) -> str:
    """Return how much a training used, as `3 steps on 192 tokens, 150 asked for`; None if steps were asked for."""
    training = trained.document["training"]
    used = trained_tokens(training)
    different = "" if tokens in (None, used) else f", {tokens:,} asked for"
    return f"{counted(training['steps'], 'step')} on {counted(used, 'token')}{different}"


def _losses(trained: Trained | TrainedFromBase) -> tuple[float, float]:
    """Return the loss on held-out tokens before and after a training, in nats per token."""
    losses: Any = getattr(trained, "losses", trained)
    return losses.before, losses.after


def result_document(trained: Trained | TrainedFromBase) -> dict[str, Any]:
    """Return the fields of JSON that the results of all trainings have."""
    used = trained_tokens(trained.document["training"])
    return {"loss": _losses(trained), "tokens": trained.tokens, "trained_tokens": used}


def loss_line(trained: Trained | TrainedFromBase, where: str = "") -> str:
    """Return the loss on held-out tokens before and after a training, in words; `where` says more of the tokens."""
    before, after = _losses(trained)
    return f"  loss on {trained.tokens:,} held-out tokens{where}: {before:.4f} before, {after:.4f} after"


def note_of_loss(trained: Trained | TrainedFromBase, keep: str = "") -> bool:
    """Return True if the loss did not improve, and remark on it; `keep` is what to do other than to train again."""
    before, after = _losses(trained)
    if after >= before:
        note(f"  the loss did not improve: {keep}train on more data, longer, or with a smaller --lr")
    return after >= before


def print_trained(trained: Trained, what: str, folder: Path, out: Path, *, tokens: int | None = None) -> None:
    """Print the result of training `what` of a composed folder into `out`; `tokens` are those that were asked for."""
    if printed_json(trained.document | {"digest": trained.digest} | result_document(trained) | {"out": out}):
        return
    done(
        trained.digest,
        f"trained {what} of {folder} into {out}  {short(trained.digest)}",
        f"  {amount(trained, tokens)}",
        loss_line(trained),
    )
    note_of_loss(trained, f"keep {folder}, or ")
    next_step(evaluating([folder, out], [member["name"] for member in trained.document.get("members", ())]))
