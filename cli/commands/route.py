"""reg route."""

import shlex
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.next_steps import reporting
from cli.opted_out import warn_of_folder
from cli.option_groups import GroupedCommand
from cli.options import Integer
from cli.output import allows_colour, as_json, is_quiet, next_step, note, print_json, print_table
from cli.places import composed_place
from cli.session import Session, pass_session
from registry.errors import InvalidInputError
from registry.io.files import is_folder
from registry.runtime.routed_folder import check_routed

if TYPE_CHECKING:
    from registry.composition.route import Routed

_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow", "bright_green",
            "bright_magenta", "bright_blue", "bright_red")  # fmt: skip
_MARKS = "abcdefghijklmnopqrstuvwxyz"


@click.command(
    cls=GroupedCommand,
    examples=('reg route moe/ "def add(a, b): return a + b"', "reg route moe/ - --every-layer < text.txt"),
)
@click.argument("folder", metavar="FOLDER", type=composed_place)
@click.argument("text", metavar="TEXT")
@click.option("--layer", "layers", type=Integer(0), multiple=True, metavar="L", help="Show this layer (repeatable).")
@click.option("--every-layer", is_flag=True, help="Show each layer, one after the other.")
@click.option("--weights", is_flag=True, help="Print a table of every expert's weight at each token.")
@click.option("--device", metavar="DEVICE", help="A torch device. [default: the GPU if there is one]")
@as_json
@pass_session
def route(
    session: Session,
    folder: Path,
    text: str,
    layers: tuple[int, ...],
    every_layer: bool,
    weights: bool,
    device: str | None,
    as_json: bool,
) -> None:
    """Print a text with each token in the colour of the expert that handles it in a composed FOLDER.

    Without --layer, this is the expert with the most routing weight over all layers. TEXT may be - for standard input.
    An ensemble or a SIMoE counts as one layer: its members' weights at a token are those that predict the next one.
    Without colours (no terminal, or NO_COLOR is set), each run of tokens is preceded by its expert's letter. --json has
    every layer's experts and weights. Where all layers agree on every token, as they do with --router context, this is
    noted, and --every-layer shows one of them.
    """
    if every_layer and layers:
        raise click.UsageError("--layer and --every-layer exclude one another.")
    if is_folder(text) and not is_folder(str(folder)):
        raise InvalidInputError("the folder comes before the text", f"reg route {shlex.join((text, str(folder)))}")
    check_routed(folder, layers)
    from registry.composition.route import MOST_CHARACTERS, route
    from registry.io.display import printable

    if text == "-":
        text = sys.stdin.read(MOST_CHARACTERS + 1)
    warn_of_folder(session, folder)
    routed = route(folder, text, device)
    if as_json:
        print_json(routed.document())
        return
    shown: list[int | None] = [*layers] or [None]
    if every_layer and not routed.is_alike:
        shown = [*range(routed.layers)]
    for layer in shown:
        if layer is not None and layer >= routed.layers:
            raise InvalidInputError(
                f"there is no layer {layer}: {routed.layers} layers route", f"choose one from 0 to {routed.layers - 1}"
            )
    coloured = sys.stdout.isatty() and allows_colour() is not False
    for layer in shown:
        if len(shown) > 1:
            click.echo(f"layer {layer}")
        if weights:
            print_table(("token", *map(printable, routed.experts)), _weights(routed, layer))
            continue
        click.echo("".join(_lines(routed, layer, coloured)), color=coloured)
        if not is_quiet():
            click.echo("  ".join(_legend(routed, layer, coloured)), color=coloured)
    if routed.is_alike:
        note(f"all {routed.layers} layers with experts agree on the expert of each token")
    next_step(reporting(folder))


def _lines(routed: "Routed", layer: int | None, coloured: bool) -> Iterator[str]:
    from registry.io.display import printable

    number = {expert: index for index, expert in enumerate(routed.experts)}
    for expert, run in groupby(routed.tokens, key=lambda token: token.expert(layer)):
        text = printable("".join(token.text for token in run), keep="\n\t")
        yield click.style(text, fg=_colour(number[expert])) if coloured else f"[{_mark(number[expert])}]{text}"


def _weights(routed: "Routed", layer: int | None) -> list[list[str]]:
    """Return the rows of a table: a token, and each expert's weight at a layer, or the mean over layers."""
    rows = []
    for token in routed.tokens:
        weights = token.total_weights if layer is None else token.weights[layer]
        total = sum(weights.values())
        rows.append([repr(token.text), *(f"{weights.get(expert, 0.0) / total:.1%}" for expert in routed.experts)])
    return rows


def _legend(routed: "Routed", layer: int | None, coloured: bool) -> Iterator[str]:
    from registry.io.display import printable

    for index, (expert, share) in enumerate(routed.shares(layer).items()):
        name = f"{printable(expert)} {share:.0%}"
        yield click.style(name, fg=_colour(index)) if coloured else f"[{_mark(index)}] {name}"


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _mark(index: int) -> str:
    """Return a, b, … z, a1, b1, …"""
    return _MARKS[index % len(_MARKS)] + (str(index // len(_MARKS)) if index >= len(_MARKS) else "")
