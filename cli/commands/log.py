"""reg log."""

import json
from typing import Any

import click

from cli.option_groups import GroupedCommand
from cli.options import Integer
from cli.output import as_json, print_json, print_table
from cli.session import Session, pass_session


@click.command(cls=GroupedCommand, examples=("reg log --limit 5", "reg log math"))
@click.argument("subject", required=False, metavar="[NAME[@V]|DIGEST]")
@click.option("--limit", type=Integer(1), metavar="N", default=50, show_default=True, help="Maximum number of lines.")
@as_json
@pass_session
def log(session: Session, subject: str | None, limit: int, as_json: bool) -> None:
    """Print the log, newest first, or only the events of NAME.

    NAME@ALIAS refers to its version. DIGEST is a composition's, or its first 6 or more digits. --json includes each
    event's digest, which covers the digest of the event before: reg verify checks this chain.
    """
    with session.registry() as registry:
        events = registry.log(subject, limit=limit)
    if as_json:
        print_json(events)
        return
    print_table(
        ("id", "at", "action", "subject", "details"),
        [(str(e.id), e.at[:19], e.action, e.subject, _short(e.details)) for e in events],
    )


def _short(details: dict[str, Any]) -> str:
    """Format details, without the digests of rows, and with counts instead of a purge's arrays."""
    shown = {key: value for key, value in details.items() if key != "rows"}
    shown |= {key: len(shown[key]) for key in ("deleted", "shared") if isinstance(shown.get(key), (dict, list))}
    return json.dumps(shown) if shown else ""
