"""Options of `reg compose --fit`, and the fit that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.options import Integer, file_path
from registry import composition

if TYPE_CHECKING:
    from registry import Registry  # with SQLAlchemy

Command = TypeVar("Command", bound=Callable[..., Any])

PREFIX = "fit_"
"""Beginning of the parameters' names."""


def fit_options(command: Command) -> Command:
    """Add --fit and the settings of a fit."""
    for option in (
        click.option("--fit-device", metavar="DEVICE", help="With --fit: a torch device. [default: the GPU if any]"),
        click.option(
            "--fit-seed", type=Integer(0), metavar="N", default=0, show_default=True,
            help="With --fit: seed of windows and their order.",
        ),
        click.option(
            "--fit-lr", type=float, metavar="X", default=0.05, show_default=True,
            help="With --fit: the highest learning rate of Adam, which bounds the change of one step.",
        ),
        click.option(
            "--fit-steps", type=Integer(1), metavar="N", default=30, show_default=True,
            help="With --fit: number of batches.",
        ),
        click.option(
            "--fit-tokens", type=Integer(1), metavar="N", default=16_384, show_default=True,
            help="With --fit: tokens of text to fit to.",
        ),
        click.option(
            "--fit", multiple=True, type=file_path, metavar="FILE",
            help="With --to dense --trunk task-arithmetic: fit the coefficients to the text of FILE by gradient, then "
            "compose with them (repeatable).",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


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

    fresh = replace(recipe, coefficients={}, fit=None)
    return registry.fit(refs, files, fresh, FitSettings(**settings), base=base).recipe
