"""reg log."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from cli.option_groups import command
from cli.options import integer
from cli.output import next_step, print_table, printed_json
from cli.session import Session, pass_session
from registry.io.display import counted, printable, short, size

if TYPE_CHECKING:
    from store.catalog import EventRecord


@command("reg log --limit 5", "reg log math")
@click.argument("subject", required=False, metavar="[NAME[@V]|DIGEST]")
@integer("--limit", "Maximum number of lines.", 50)
@pass_session
def log(session: Session, subject: str | None, limit: int) -> None:
    """Print the log, newest first, or only the events of NAME.

    NAME@ALIAS refers to its version. DIGEST is a composition's, or its first 6 or more digits. --json has all of each
    event, with a digest that covers the digest of the event before: reg verify checks this chain. Who did it is
    REG_ACTOR, else the system's user.
    """
    with session.registry() as registry:
        events = registry.log(subject, limit=limit)
    if printed_json(events):
        return
    rows = [
        (event.at[:16].replace("T", " "), printable(event.actor or "-"), printable(sentence(event))) for event in events
    ]
    print_table(("time (UTC)", "who", "event"), rows)
    if events:
        next_step(["verify"])


def sentence(event: "EventRecord") -> str:
    """Return what happened, in a sentence: `math@1 was registered`; an event of another form is only named."""
    try:
        return _SENTENCES[event.action](event.subject, event.details)
    except (KeyError, TypeError, AttributeError):  # an older registry, or a log that was written by hand
        return f"{event.action} of {event.subject}"


def _named(subject: str) -> str:
    return subject if "@" in subject else f"composition {short(subject)}"


def _composed(subject: str, details: Mapping[str, Any]) -> str:
    into = f" into {details['out']}" if details.get("out") else ""
    were = "was" if len(details["members"]) == 1 else "were"
    return f"{', '.join(details['members'])} {were} composed{into} ({short(subject)})"


def _aliased(subject: str, details: Mapping[str, Any]) -> str:
    if details.get("deleted"):
        return f"the alias {subject}@{details['alias']} was deleted"
    before = f" in place of {details['before']}" if details.get("before") not in (None, subject) else ""
    return f"the alias {details['alias']} was pointed at {subject}{before}"


def _pushed(subject: str, details: Mapping[str, Any]) -> str:
    to = f"{details['repo']}, {details['revision']}"
    if details["commit"] is None:
        return f"a push of {_named(subject)} to {to} began"
    return f"{_named(subject)} was pushed to {to} (commit {short(details['commit'])})"


def _purged(subject: str, details: Mapping[str, Any]) -> str:
    stay = f", and {counted(len(details['shared']), 'shared one')} kept" if details["shared"] else ""
    deleted = details["deleted"]
    freed = f" ({size(sum(deleted.values()))})" if isinstance(deleted, dict) else ""  # older logs have no sizes
    return f"{subject} was purged: {counted(len(deleted), 'array')} deleted{freed}{stay}"


def _collected(_subject: str, details: Mapping[str, Any]) -> str:
    were = "was" if details["arrays"] == 1 else "were"
    return f"{counted(details['arrays'], 'unused array')} {were} deleted ({size(details['bytes'])})"


_SENTENCES: dict[str, Callable[[str, Mapping[str, Any]], str]] = {
    "add-expert": lambda subject, _: f"{subject} was registered",
    "add-base": lambda subject, _: f"{subject} was registered as a base model",
    "tag": lambda subject, _: f"the tags of {subject} were changed",
    "alias": _aliased,
    "compose": _composed,
    "evaluate": lambda subject, _: f"{_named(subject)} was evaluated",
    "push": _pushed,
    "opt-out": lambda subject, _: f"{subject} was opted out",
    "forget": lambda subject, _: f"evaluations that involved {subject} were deleted, as it was purged",
    "purge": _purged,
    "gc": _collected,
}
"""Action → the sentence of an event."""
