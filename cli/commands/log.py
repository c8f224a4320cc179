"""reg log."""

import json
from typing import Any

import click

from cli.options import Integer
from cli.session import Session, as_json, pass_session, print_json, print_table


@click.command()
@click.argument("subject", required=False, metavar="[NAME[@V]|DIGEST]")
@click.option("--limit", type=Integer(1), metavar="N", default=50, show_default=True, help="Lines at most.")
@as_json
@pass_session
def log(session: Session, subject: str | None, limit: int, as_json: bool) -> None:
    """Print what happened, newest first, all of it or what concerns NAME.

    NAME@ALIAS stands for its version. DIGEST is a composition's, or its first digits, 6 or more. --json shows each
    event's own digest too, which is taken over the one before: reg verify follows them.
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
    """Return details as a person reads them: without the digests of rows, and of a purge's arrays only how many."""
    shown = {key: value for key, value in details.items() if key != "rows"}
    shown |= {key: len(shown[key]) for key in ("deleted", "shared") if isinstance(shown.get(key), (dict, list))}
    return json.dumps(shown) if shown else ""
