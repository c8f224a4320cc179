"""Options of `--fit`, the fit that they ask for, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.options import files, integer, number, option, options
from cli.output import count
from registry import composition
from registry.calibration import Corpus

if TYPE_CHECKING:
    from registry import Registry  # with SQLAlchemy

Command = TypeVar("Command", bound=Callable[..., Any])

PREFIX = "fit_"
"""Beginning of the parameters' names."""


def fit_options(does: str) -> Callable[[Command], Command]:
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
    names = [name for name in settings if name.startswith(PREFIX)]
    for name in names:
        if not files and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} is for --fit.")
    return {name.removeprefix(PREFIX): settings.pop(name) for name in names}


def fit_line(recipe: composition.Recipe) -> str:
    """Return what the coefficients of a recipe were fitted to, and what that gained."""
    assert recipe.fit is not None
    losses = f"{recipe.fit.before:.4f} with equal coefficients, {recipe.fit.after:.4f} with these"
    return f"loss on held-out text {losses}; {recipe.fit.tokens:,} tokens, {count(recipe.fit.steps, 'step')}"


def unfitted(
    registry: Registry,
    refs: Sequence[str],
    recipe: composition.Recipe,
    files: Sequence[Path],
    settings: dict[str, Any],
) -> tuple[composition.Recipe, str]:
    """Return a recipe with equal coefficients, for a plan before the fit, and a line on what the fit will read.

    Raises:
        RegError: a file does not exist or has another ending than text has, or a setting is out of its range.
    """
    from registry import FitSettings

    Corpus(files, None)  # refuses what cannot be read as text
    found, names = FitSettings(**settings), [registry.resolve(ref).name for ref in refs]
    equal = dict.fromkeys(names, 1 / max(1, len(names)))
    text = ", ".join(path.name for path in files)
    reads = f"reads up to {found.tokens:,} tokens of {text} in {count(found.steps, 'step')}"
    return recipe.replace(coefficients=equal, fit=None), f"{reads}; coefficients are found when it is composed"


def fitted(
    registry: Registry,
    refs: Sequence[str],
    recipe: composition.Recipe,
    files: Sequence[Path],
    settings: dict[str, Any],
    *,
    base: str | None,
) -> composition.Recipe:
    """Return the recipe with coefficients fitted to files; those that a recipe file gave are replaced."""
    from registry import FitSettings

    fresh = recipe.replace(coefficients=None, fit=None)
    return registry.fit(refs, files, fresh, FitSettings(**settings), base=base).recipe
