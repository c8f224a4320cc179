"""Options that the commands which train share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from cli.options import Choice, Integer, advanced, file_path

Command = TypeVar("Command", bound=Callable[..., Any])

_TOKENS = click.option(
    "--tokens", type=Integer(1), metavar="N", default=409_600, show_default=True, help="Training tokens in total."
)
_STEPS = click.option(
    "--steps", type=Integer(1), metavar="N", default=200, show_default=True, help="Number of batches."
)
_ACCUMULATE = advanced(
    "--accumulate", type=Integer(1), metavar="N", default=1, show_default=True, help="Batches per step of AdamW."
)

_BALANCE = "Weight of the load-balance loss (BTX)."


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

    def add(command: Command) -> Command:
        options = [
            _TOKENS if by_tokens else _STEPS,
            click.option(
                "--seq-len", type=Integer(2), metavar="N", default=256, show_default=True, help="Tokens per window."
            ),
            click.option(
                "--batch-size", type=Integer(1), metavar="N", default=8, show_default=True, help="Windows per batch."
            ),
            *([_ACCUMULATE] if by_tokens else []),
            _number(click.option, "--lr", lr, "The highest learning rate of AdamW."),
            advanced("--warmup", type=Integer(0), metavar="N", help=f"Steps of linear warm-up. [default: {warmup}]"),
            _number(advanced, "--weight-decay", weight_decay, decays),
            *([] if balance is None else [_number(advanced, "--balance", balance, _BALANCE)]),
            advanced(
                "--seed",
                type=Integer(0),
                metavar="N",
                default=0,
                show_default=True,
                help="Seed of windows and their order.",
            ),
        ]
        for option in reversed(options):
            command = option(command)
        return command

    return add


def mixture_text(command: Command) -> Command:
    """Add --data and --out of a command that trains a composed folder."""
    for option in (
        click.option("--out", type=file_path, required=True, metavar="DIR", help="The folder to write."),
        click.option(
            "--data",
            multiple=True,
            required=True,
            metavar="FILE|NAME",
            help="Training text: .txt, .jsonl, .jsonl.gz, .parquet; or a member registered with --keep-calibration "
            "(repeatable; each provides the same number of windows).",
        ),
    ):
        command = option(command)
    return command


def weight_products(routers: str = "", *, fsdp: bool = True) -> Callable[[Command], Command]:
    """Return a decorator that adds --device, --dtype and --fsdp of a training of weights.

    Args:
        routers: what `auto` is for routers alone, where they can train alone.
        fsdp: add --fsdp, for several processes.
    """
    fast = f"bfloat16 where the device is fast in it{', and ' if routers else ''}{routers}"

    def add(command: Command) -> Command:
        sharding = advanced(
            "--fsdp",
            is_flag=True,
            help="Shard weights, gradients and moments over the processes that torchrun started.",
        )
        for option in (
            *([sharding] if fsdp else []),
            advanced(
                "--dtype",
                type=Choice(["auto", "bfloat16", "float32"]),
                default="auto",
                show_default=True,
                metavar="DTYPE",
                help=f"The dtype of the products: bfloat16, float32, or auto: {fast}. Weights and moments stay in "
                "float32.",
            ),
            advanced("--device", metavar="DEVICE", help="cpu or cuda. [default: the GPU if there is one]"),
        ):
            command = option(command)
        return command

    return add


def _number(
    add: Callable[..., Callable[[Command], Command]], name: str, default: float | str, help_: str
) -> Callable[[Command], Command]:
    if isinstance(default, str):
        return add(name, type=float, metavar="X", help=f"{help_} [default: {default}]")
    return add(name, type=float, metavar="X", default=default, show_default=True, help=help_)
