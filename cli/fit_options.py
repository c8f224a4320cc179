"""Options of `--fit`, and what is said of a fit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from cli.options import files, integer, number, option, options
from cli.output import Decorator, count
from registry import composition

_PREFIX = "fit_"
"""Beginning of the parameters' names."""


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
        option("--fit-device", "DEVICE", "With --fit: a torch device. [default: the GPU if any]", **settings),
    )


def take_fit_settings(context: click.Context, settings: dict[str, Any], files: Sequence[Path]) -> dict[str, Any]:
    """Take the settings of a fit out of a command's parameters, and return them.

    Raises:
        click.UsageError: one is given, and no file to fit to.
    """
    names = [name for name in settings if name.startswith(_PREFIX)]
    for name in names:
        if not files and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} is for --fit.")
    return {name.removeprefix(_PREFIX): settings.pop(name) for name in names}


def fit_line(recipe: composition.Recipe) -> str:
    """Return what the coefficients of a recipe were fitted to, and what that gained."""
    assert recipe.fit is not None
    losses = f"{recipe.fit.before:.4f} with equal coefficients, {recipe.fit.after:.4f} with these"
    return f"loss on held-out text {losses}; {recipe.fit.tokens:,} tokens, {count(recipe.fit.steps, 'step')}"
