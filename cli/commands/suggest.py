"""The command that names the experts to compose for a text: suggest."""

from pathlib import Path
from typing import Any

import click

from cli.next_steps import composing, of_counts_alone
from cli.option_groups import command
from cli.options import Size, files, integer, option, split
from cli.output import done, is_quiet, next_step, note, print_line, print_table, printed_json
from cli.session import Session, pass_session
from registry.io.display import few

FEW_TOKENS = 512
"""Tokens of text below which a remark says that they are few."""


@command("reg suggest --like mine.jsonl", "reg suggest --like mine.jsonl --budget 3 --must math --without code")
@files("--like", "The text: .txt, .jsonl, .jsonl.gz, .parquet (repeatable).", required=True)
@integer("--budget", "Experts to choose, at most. [default: as many as lower the predicted loss]")
@option("--max-bytes SIZE", "In place of --budget: the size of the default mixture's weights, at most.", type=Size())
@option("--must A,B@2,…", "Experts to choose in any case.", multiple=True)
@option("--without A,B,…", "Experts not to choose.", multiple=True)
@pass_session
def suggest(session: Session, /, like: tuple[Path, ...], **settings: Any) -> None:
    """Name the experts to compose for a text, from stored counts of tokens alone: no model runs.

    One after another is chosen: the one that lowers the predicted loss of the text most, until the next would lower it
    by less than 3 %. The loss, in nats a token, is that of counts, and compares experts; a model's is lower. A line has
    the share of the text that goes to the expert, the loss with it and those before it, and how much more its share
    costs than its own text does. Text that costs every expert much more is said to be nobody's.
    """
    if settings["budget"] is not None and settings["max_bytes"] is not None:
        raise click.UsageError("--budget and --max-bytes exclude one another.")
    settings |= {name: split(settings[name]) for name in ("must", "without")}
    with session.registry() as registry:
        found = registry.suggest(like, **settings)
        bases = {version.name for version in registry.versions(kind="base")}
        options = of_counts_alone([registry.resolve(one.ref) for one in found.experts])
    if printed_json(found.document()):
        return
    rows = [
        (one.ref, f"{one.share:.0%}", f"{one.loss:.2f}", f"{one.beyond:+.2f}", "yes" if one.knows else "no")
        for one in found.experts
    ]
    refs = [one.ref for one in found.experts]
    if is_quiet():
        if found.nobody:
            click.echo("nobody knows this text", err=True)
        done(",".join(refs))
        return
    print_table(("expert", "share of the text", "loss with it", "beyond its own text", "knows it"), rows)
    if found.tokens < FEW_TOKENS:
        note(f"only {found.tokens:,} tokens of text: more of it tells experts apart better")
    if found.left_out:
        note(f"not compared: {few(list(found.left_out))}")
    if not found.nobody:
        next_step(composing(refs, *options))
        return
    if found.others_know:
        print_line("these experts do not know this text, and others know some of it: allow more, or name fewer")
        return
    print_line("nobody knows this text: these are the nearest experts")
    base = bases.pop() if len(bases) == 1 else "BASE"
    data = [word for path in like for word in ("--data", str(path))]
    next_step(["train-expert", "NAME", "--base", base, *data])
