"""reg push."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.options import file_path, hub_target
from cli.session import Session, as_json, done, pass_session, print_json, size

if TYPE_CHECKING:
    from registry.hub.target import Pushed


@click.command()
@click.argument("folder", metavar="FOLDER", type=file_path)
@hub_target
@click.option(
    "--license",
    "license_id",
    metavar="ID",
    help="What the whole is under, as the Hub writes it. [default: what the members' licenses come to]",
)
@as_json
@pass_session
def push(
    session: Session,
    folder: Path,
    repo: str,
    revision: str | None,
    private: bool,
    create_pr: bool,
    force: bool,
    license_id: str | None,
    as_json: bool,
) -> None:
    """Push a composed FOLDER to REPO, ORG/NAME on the Hub, in one commit, and compare what arrived.

    FOLDER must be what was composed, byte for byte. What this registry knows beside that (scores, languages, where
    members are on the Hub) is added to the model card. Interrupted, it goes on when the same command is given again.
    """
    from registry.hub.target import Target

    target = Target.parse(repo, revision=revision, private=private, create_pr=create_pr, force=force)
    with session.registry() as registry:
        pushed = registry.push(folder, target, license=license_id)
    print_json(pushed) if as_json else print_pushed(pushed)


def print_pushed(pushed: "Pushed") -> None:
    """Print what a push did; with --quiet the commit."""
    deed = "pushed to" if pushed.added else "all of it was there already:"
    end = f"{pushed.revision}, commit {pushed.commit[:12]}, {size(pushed.nbytes)} verified"
    done(pushed.commit, f"{deed} {pushed.url}  {end}")
