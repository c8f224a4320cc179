"""reg list."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click

from cli.option_groups import GroupedCommand
from cli.options import Choice, Integer, unique_pairs
from cli.output import as_json, is_quiet, next_step, note, print_json, print_table, reg_line, short
from cli.session import Session, pass_session
from cli.version_output import shown_parameters, version_document

if TYPE_CHECKING:
    from store.catalog import VersionRecord

SCREENFUL = 50
"""Default maximum number of lines."""


@click.command(
    "list",
    cls=GroupedCommand,
    examples=("reg list", "reg list --kind expert --tag language=en", "reg list --all --limit 20"),
)
@click.option("--kind", type=Choice(["expert", "base"]), metavar="KIND", help="Only one kind: expert or base.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="K=V",
    help="Only versions with this tag (repeatable).",
    callback=unique_pairs("K=V"),
)
@click.option("--all", "everything", is_flag=True, help="Include opted-out versions.")
@click.option(
    "--limit",
    type=Integer(1),
    metavar="N",
    help=f"Maximum number of versions. [default: {SCREENFUL}; with --json or --quiet all]",
)
@click.option("--offset", type=Integer(0), metavar="N", default=0, show_default=True, help="Skip the first N versions.")
@as_json
@pass_session
def list_(
    session: Session,
    kind: Literal["expert", "base"] | None,
    tags: dict[str, str],
    everything: bool,
    limit: int | None,
    offset: int,
    as_json: bool,
) -> None:
    """List registered versions, by name and number.

    With --quiet, it prints only their names, such as math@1, one a line.

    Tokens are those of an expert's own calibration text. Base models have none, and experts of a soup or a SIMoE share
    one text. If there are more versions than shown, a line on stderr gives their number and the command that shows the
    next ones.
    """
    shown = limit if as_json or is_quiet() else limit or SCREENFUL
    with session.registry() as registry:
        home = registry.home.path
        versions = registry.versions(kind=kind, everything=everything, tags=tags, limit=shown, offset=offset)
        full = shown is not None and len(versions) == shown
        total = registry.count_versions(kind=kind, everything=everything, tags=tags) if full else 0
    if as_json:
        print_json([version_document(version) for version in versions])
    elif is_quiet():
        for version in versions:
            click.echo(version.ref)
    else:
        _print(versions)
        if not versions and not offset:
            filtered = "of that kind or with those tags " if kind or tags else ""
            others = "" if everything else "; reg list --all shows opted-out versions"
            note(
                f"nothing {filtered}is registered in {home}: reg add-expert NAME CKPT registers an expert, "
                f"--home or REG_HOME names another registry{others}"
            )
    if (more := total - offset - len(versions)) > 0:
        words = ["list"]
        words += ["--kind", kind] if kind else []
        words += [word for key, value in tags.items() for word in ("--tag", f"{key}={value}")]
        words += ["--all"] if everything else []
        words += ["--limit", str(limit)] if limit else []
        words += ["--offset", str(offset + len(versions)), *(["--json"] if as_json else [])]
        note(f"{more:,} more: {reg_line(words)}")
    elif versions:
        next_step(["show", versions[0].ref])


def _tokens(version: "VersionRecord") -> str:
    """Return the tokens of a version's own calibration text, or a dash."""
    if {"soup", "simoe"} & (version.content or {}).keys():
        return "-"
    return next((f"{one.tokens:,}" for one in version.statistics), "-")


def _print(versions: "Sequence[VersionRecord]") -> None:
    print_table(
        ("version", "kind", "digest", "parameters", "tokens", "aliases", "tags", "state"),
        [
            (
                version.ref,
                version.kind,
                short(version.digest),
                shown_parameters(version),
                _tokens(version),
                ",".join(version.aliases),
                ",".join(f"{key}={value}" for key, value in version.tags.items()),
                version.state,
            )
            for version in versions
        ],
    )
