"""Jobs that commands are for, and shorter names of some: the help of `reg` is arranged by these tables."""

from collections.abc import Mapping, Sequence

import click

JOBS: dict[str, tuple[str, ...]] = {
    "Start": ("demo", "config", "completion"),
    "Register": ("add-expert", "add-experts", "add-base", "check", "collect", "alias"),
    "Train": ("train-expert", "train", "train-router", "proxy", "train-soup", "train-simoe"),
    "Compose": ("compose", "instantiate", "preview", "reproduce"),
    "Look": (
        "list",
        "show",
        "compositions",
        "log",
        "ui",
        "evaluate",
        "report",
        "route",
        "doctor",
        "scores",
        "continual",
        "audit-extraction",
    ),
    "Share": ("push", "push-expert", "export"),
    "Withdraw": ("opt-out", "receipt"),
    "Maintain": ("verify", "gc", "arrays", "db", "schema"),
}
"""Job → commands, in the order of the help; every command stands in one of them."""

ALIASES = {"ls": "list", "rm": "opt-out", "add": "add-expert"}
"""Shorter name → command."""

BY_WORD = f"{__name__}.by_word"
"""Key of the remark that `help` stands before the command."""


def names_of(command: str) -> str:
    """Return the names of a command, as the help shows them: `list, ls`."""
    return ", ".join([command, *(short for short, own in ALIASES.items() if own == command)])


def write_jobs(formatter: click.HelpFormatter, summaries: Mapping[str, str], known: Sequence[str]) -> None:
    """Write the `known` commands by job, each with its whole summary."""
    width = max(len(names_of(name)) for name in known)
    for job, names in JOBS.items():
        with formatter.section(job):
            formatter.write_dl([(names_of(name).ljust(width), summaries[name]) for name in names if name in known])
