"""Commands on the routing of a composition: route, preview, report."""

import shlex
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.next_steps import composing_as_typed, evaluating, reporting
from cli.option_groups import EVALUATION, command
from cli.options import Integer, composed_path, composed_text, device, file, flag, option
from cli.output import allows_colour, done, is_json, is_quiet, next_step, note, print_line, print_table, printed_json
from cli.recipe import asked, base_option, experts_option, recipe_options
from cli.score_tables import Table, print_tables, share
from cli.session import Session, pass_session
from cli.shared_options import scoring
from cli.version_output import warn_of_folder, warn_of_opted_out
from registry.errors import InvalidInputError
from registry.io.display import printable
from registry.io.model_folder import check_file
from registry.io.untrusted import is_folder
from registry.runtime.folder_checks import check_routed

if TYPE_CHECKING:
    from registry.composition.preview import Preview
    from registry.composition.route import Routed

_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow", "bright_green",
            "bright_magenta", "bright_blue", "bright_red")  # fmt: skip
_MARKS = "abcdefghijklmnopqrstuvwxyz"


@command('reg route moe/ "def add(a, b): return a + b"', "reg route moe/ - --every-layer < text.txt")
@click.argument("folder", metavar="FOLDER", type=composed_path)
@click.argument("text", metavar="TEXT")
@option("--layer L", "Show this layer (repeatable).", "layers", type=Integer(0), multiple=True)
@flag("--every-layer", "Show each layer, one after the other.")
@flag("--weights", "Print a table of every expert's weight at each token.")
@flag("--pick", "Print only the name of the expert that goes on with TEXT.", "picked")
@device
@pass_session
def route(
    session: Session,
    folder: Path,
    text: str,
    layers: tuple[int, ...],
    every_layer: bool,
    weights: bool,
    picked: bool,
    device: str | None,
) -> None:
    """Print a text with each token in the colour of the expert that handles it in a composed FOLDER.

    Without --layer, this is the expert with the most routing weight over all layers. TEXT may be - for standard input.
    An ensemble or a SIMoE counts as one layer: its members' weights at a token are those that predict the next one.
    Without colours (no terminal, or NO_COLOR is set), each run of tokens is preceded by its expert's letter. --json has
    every layer's experts and weights. Where all layers agree on every token, as they do with --router context, this is
    noted, and --every-layer shows one of them.

    With --pick, the name is that of the expert at the end of TEXT, for servers that take an adapter's name with each
    request. Of a folder of adapters no model is loaded.
    """
    if every_layer + bool(layers) + picked > 1:
        raise click.UsageError("--layer, --every-layer and --pick exclude one another.")
    if is_folder(text) and not is_folder(str(folder)):
        raise InvalidInputError("the folder comes before the text", f"reg route {shlex.join((text, str(folder)))}")
    check_routed(folder, layers)
    from registry.composition.route import MOST_CHARACTERS, pick, route

    if text == "-":
        text = sys.stdin.read(MOST_CHARACTERS + 1)
    warn_of_folder(session, folder)
    if picked:
        expert = pick(folder, text, device)
        if not printed_json({"expert": expert}):
            print_line(printable(expert))
        return
    routed = route(folder, text, device)
    if printed_json(routed.document()):
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
    number = {expert: index for index, expert in enumerate(routed.experts)}
    for expert, run in groupby(routed.tokens, key=lambda token: token.expert(layer)):
        text = printable("".join(token.text for token in run), keep="\n\t")
        yield _marked(text, number[expert], coloured)


def _weights(routed: "Routed", layer: int | None) -> list[list[str]]:
    """Return the rows of a table: a token, and each expert's weight at a layer, or the mean over layers."""
    rows = []
    for token in routed.tokens:
        weights = token.total_weights if layer is None else token.weights[layer]
        total = sum(weights.values())
        rows.append([repr(token.text), *(f"{weights.get(expert, 0.0) / total:.1%}" for expert in routed.experts)])
    return rows


def _legend(routed: "Routed", layer: int | None, coloured: bool) -> Iterator[str]:
    for index, (expert, part) in enumerate(routed.shares(layer).items()):
        yield _marked(f"{printable(expert)} {part:.0%}", index, coloured, " ")


def _marked(text: str, index: int, coloured: bool, gap: str = "") -> str:
    """Return a text in the colour of an expert, or after its letter: a, b, … z, a1, b1, …"""
    if coloured:
        return click.style(text, fg=_COLOURS[index % len(_COLOURS)])
    rounds, letter = divmod(index, len(_MARKS))
    return f"[{_MARKS[letter]}{rounds or ''}]{gap}{text}"


_WITHOUT = ("to", "routing", "routing_tokens", "mixing", "lead", "bias", "gating", "device", "dtype", "host",
            "remote_code")  # fmt: skip


@command("reg preview --experts code,math", "reg preview --experts code,math,law --router random")
@experts_option
@recipe_options(*_WITHOUT)
@base_option
@pass_session
def preview(session: Session, /, experts: tuple[str, ...], base: str | None, **settings: Any) -> None:
    """Predict the routing of a composition from statistics alone: no weights are read, nothing is written.

    For each expert: its tokens and its weight in the routers' solve; the share of its text whose first choice is this
    expert (routing accuracy, as in reg evaluate) and the shares of the other experts; the overlap of its text with
    theirs; and whether it is drowned out. With --router context, all of it from counts of tokens, after 32 tokens of a
    text, and the accuracy after 1, 2, 4, … tokens.
    """
    wanted = asked(session, experts, base, settings)
    with session.registry() as registry:
        prediction = registry.preview(wanted.experts, wanted.recipe, base=wanted.base)
    if printed_json(prediction.document()):
        return
    _print(prediction)
    next_step(composing_as_typed())


def _print(prediction: "Preview") -> None:
    refs, by_tokens = prediction.refs, prediction.by_tokens
    if by_tokens:  # context routing solves nothing
        solved, measure = [], "token counts"
        heading, columns = "accuracy after … tokens", [length.tokens for length in by_tokens]
        confusions = [length.confusion for length in by_tokens]
    else:
        solved, measure = ["weight in the solve"], "activations"
        heading, columns, confusions = "accuracy in layer", [*prediction.layers], [*prediction.confusion]
    members = [
        (one.ref, f"{one.tokens:,}", *(share(one.part) for _ in solved), share(one.accuracy), share(one.share))
        for one in prediction.members
    ]
    mean = [(ref, *map(share, row)) for ref, row in zip(refs, prediction.mean_confusion, strict=True)]
    own = [(ref, *(share(one[n][n]) for one in confusions)) for n, ref in enumerate(refs)]
    pairs = sorted(prediction.overlap.items(), key=lambda item: -item[1])
    tables = [
        Table(("expert", "tokens", *solved, "routing accuracy", "load"), members),
        Table(("text of ↓ goes to →", *refs), mean),
        Table((heading, *map(str, columns)), own),
        *([Table((f"overlap of {measure}", "", ""), [(a, b, share(one)) for (a, b), one in pairs])] if pairs else []),
    ]
    print_tables(tables)
    for member in prediction.members:
        if member.drowned:
            print_line(f"{member.ref} is drowned out: {member.drowned}")
    for a, b in prediction.indistinct:
        print_line(f"{a} and {b}: routers can hardly separate their tokens, and less well than predicted here")
    for text in prediction.notes:
        note(text)


@command(
    "reg report moe/ --out report.html",
    "reg report moe/ --data code=code.test.jsonl --out report.html",
    headings=EVALUATION,
)
@click.argument("composition", metavar="FOLDER|DIGEST", type=composed_text)
@scoring(required=False)
@file("--out FILE", "The page to write; optional with --json.")
@flag("--force", "Replace --out.")
@pass_session
def report(
    session: Session, /, composition: str, data: dict[str, list[Path]], out: Path | None, force: bool, **settings: Any
) -> None:
    """Write a page about a composition: routing by domain, confusion, overlap, load, scores, lineage.

    It is one self-contained HTML file. With --data, routing and scores are measured now, also for the base model, the
    experts, their averaged weights and oracle routing. Otherwise they come from the stored evaluation with the most
    domains; without one, routing is predicted from statistics.
    """
    if out is None and not is_json():
        raise click.UsageError("give --out FILE, or --json")

    from registry import TestSettings

    if out is not None:
        check_file(out, replace=force)
    with session.registry() as registry:
        figures = registry.report(composition, data, TestSettings(**settings))
        warn_of_opted_out(registry, [composition])  # last: a wrong name is to be reported before torch is imported
    if out is not None:
        from registry.report import page
        from registry.report.files import write_page

        write_page(out, page(figures), replace=force)
    if printed_json(figures.document()):
        return
    done(str(out), f"wrote {out}", *(f"  {text}" for text in figures.notes))
    folder = composition if Path(composition).is_dir() else figures.folder
    if not figures.scores and folder is not None:
        next_step(evaluating([folder], figures.experts))
    else:
        next_step(["push", composition, "ORG/NAME"] if Path(composition).is_dir() else ["show", composition])
