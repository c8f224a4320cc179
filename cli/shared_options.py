"""Options that several commands share, but for those of a recipe and of a training."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.options import (
    Size,
    choice,
    device,
    files,
    flag,
    integer,
    is_typed,
    lists,
    number,
    option,
    options,
    unique_pairs,
)
from cli.output import Decorator
from registry import composition
from registry.families.sites import SITES
from registry.io.display import counted
from registry.statistics.settings import DEFAULT_SEQ_LEN, DEFAULT_TOKENS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from registry.distributed import Cluster

Settings = TypeVar("Settings", bound="DataclassInstance")


def _dtype(own: str) -> Decorator:
    return choice(
        "--dtype",
        ("auto", "bfloat16", "float16", "float32"),
        f"The dtype of the computation: bfloat16, float16, float32, or auto: {own} where the device computes it fast, "
        "else float32.",
        "auto",
        advanced=True,
    )


checkpoint = click.argument("checkpoint", metavar="CKPT")
adapter_base = option(
    "--base BASE",
    "The base model of an adapter CKPT: a registered NAME[@V], a folder or hf://ORG/NAME. "
    "[default: from the adapter's configuration]",
)
remote_code = flag(
    "--remote-code",
    "Accept CKPT even if no native host supports it: its compositions then need --remote-code too.",
    advanced=True,
)
examined = options(
    adapter_base,
    flag(
        "--allow-unrelated",
        "Accept CKPT even if it is unrelated to all registered models of the same shape.",
        advanced=True,
    ),
    remote_code,
    option(
        "--tokenizer-of NAME[@V]",
        "Number the added tokens of CKPT as this version does, where both gave one number to two tokens.",
        advanced=True,
    ),
)
"""The base model of an adapter, and what a checkpoint is accepted in spite of."""
keep_calibration = flag("--keep-calibration", "Store the calibration tokens too.")
annotations = options(
    option(
        "--tag K=V", "A tag for searching (repeatable).", "tags", multiple=True, callback=unique_pairs("K=V"),
        advanced=True,
    ),
    option(
        "--license ID",
        "The checkpoint's license, an identifier of the Hub such as apache-2.0. It is part of the content: the same "
        "checkpoint under another license is another version.",
    ),
    option("--alias ALIAS", "Point this alias at the version: NAME@ALIAS."),
)  # fmt: skip
"""--tag, --license and --alias of a new version."""

pass_options = options(
    choice(
        "--sites",
        list(SITES),
        "all; or router: only the statistics of routers, without those that --trunk regmean needs; or counts: "
        "only how often each token occurs, without a forward pass.",
        "all",
    ),
    integer("--tokens", "Total calibration tokens; of the text up to 262,144 are counted as evidence.", DEFAULT_TOKENS),
    integer(
        "--document-tokens",
        "Take only the first N tokens of each document, a window each; without, windows anywhere in the text.",
        least=2,
        advanced=True,
    ),
    integer("--seq-len", "Tokens per window.", DEFAULT_SEQ_LEN, least=2),
    integer("--batch-size", "Windows per batch.", 16),
    device,
    option(
        "--max-memory SIZE",
        "Memory that the pass may take, such as 6GiB. A model that does not fit is read layer by layer, with "
        "the same result. [default: the free memory]",
        type=Size(),
        advanced=True,
    ),
    _dtype("the checkpoint's own"),
)
"""The settings of the forward pass that collects statistics."""

calibration = options(
    files("--data", "Calibration text: .txt, .jsonl, .jsonl.gz, .parquet (repeatable)."), pass_options
)
"""--data and the settings of the forward pass."""

hub_target = options(
    click.argument("repo", metavar="REPO"),
    option("--revision BRANCH", "The branch, created if it does not exist. [default: main]"),
    flag("--private", "Create a private repository; an existing public one is refused."),
    flag("--create-pr", "Propose the commit as a pull request."),
    flag("--force", "Replace the content of an earlier push, in a new commit."),
)
"""The argument REPO and the options of a push."""

ray_option = option(
    "--ray ADDRESS",
    "Run parts of the work as tasks of a Ray cluster: local for the processors of this machine, auto for the cluster "
    "of this node, or HOST:PORT. The result is the same, bit for bit.",
    advanced=True,
)
cluster_options = options(
    ray_option,
    option(
        "--num-gpus N",
        "With --ray: GPUs that each task takes; 0.5 lets two tasks share one. [default: 0: tasks compute on the "
        "processor]",
        type=click.FloatRange(min=0),
        advanced=True,
    ),
)


def scoring(*, required: bool) -> Decorator:
    """Return a decorator that adds --data DOMAIN=FILE, and the options of scoring."""
    return options(
        option(
            "--data DOMAIN=FILE",
            "Test text of a domain, which has the name of its expert if there is one (repeatable).",
            multiple=True,
            required=required,
            callback=lists("DOMAIN=FILE", Path),
        ),
        integer("--windows", "Windows per domain.", 48),
        integer("--seq-len", "Tokens per window.", 256, least=2),
        integer("--batch-size", "Windows per batch.", 16, advanced=True),
        device,
        _dtype("the weights' own"),
    )


def fit_options(does: str) -> Decorator:
    """Return a decorator that adds --fit, with `does` as its help, and the settings of a fit."""
    settings: dict[str, Any] = {"advanced": True, "outputs": ("dense",)}
    rate = "With --fit: the highest learning rate of Adam, which bounds the change of one step."
    return options(
        files("--fit", f"{does} (repeatable).", **settings),
        integer("--fit-tokens", "With --fit: tokens of text to fit to.", 16_384, **settings),
        integer("--fit-steps", "With --fit: number of batches.", 30, **settings),
        number("--fit-lr", rate, 0.05, **settings),
        integer("--fit-seed", "With --fit: seed of windows and their order.", 0, least=0, **settings),
        option("--fit-device DEVICE", "With --fit: a torch device. [default: the GPU if any]", **settings),
    )


def take_fit_settings(settings: dict[str, Any], files: Sequence[Path]) -> dict[str, Any]:
    """Take the settings of a fit out of a command's parameters; UsageError if one is given without a file."""
    names = [name for name in settings if name.startswith("fit_")]
    for name in names:
        if not files and is_typed(name):
            raise click.UsageError(f"--{name.replace('_', '-')} is for --fit.")
    return {name.removeprefix("fit_"): settings.pop(name) for name in names}


def fit_line(recipe: composition.Recipe) -> str:
    """Return what the coefficients of a recipe were fitted to, and what that gained."""
    assert recipe.fit is not None
    losses = f"{recipe.fit.before:.4f} with equal coefficients, {recipe.fit.after:.4f} with these"
    return f"loss on held-out text {losses}; {recipe.fit.tokens:,} tokens, {counted(recipe.fit.steps, 'step')}"


def take(kind: type[Settings], settings: dict[str, Any]) -> Settings:
    """Take the fields of settings out of a command's parameters, and return the settings."""
    return kind(**{field.name: settings.pop(field.name) for field in fields(kind) if field.name in settings})


@contextmanager
def connected(settings: dict[str, Any]) -> "Iterator[Cluster | None]":
    """Connect to the cluster of --ray and --num-gpus, which are taken out of the parameters; None without --ray."""
    ray, gpus = settings.pop("ray"), settings.pop("num_gpus", None)
    if ray is None:
        if gpus is not None:
            raise click.UsageError("--num-gpus goes with --ray.")
        yield None
        return
    from registry.distributed import connect

    with connect(ray, gpus=gpus or 0.0) as cluster:
        yield cluster
