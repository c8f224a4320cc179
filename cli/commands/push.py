"""Commands that push to the Hub: push, push-expert."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.next_steps import loading
from cli.option_groups import PUSH, command
from cli.options import composed_path, file, flag, option
from cli.output import announce, done, next_step, printed_json
from cli.session import Session, pass_session
from cli.shared_options import hub_target
from registry.io.display import short, size

if TYPE_CHECKING:
    from registry.hub.target import Pushed


@command(
    "reg push moe/ ORG/code-math --license apache-2.0",
    "reg push moe/ ORG/code-math --private --revision v1",
    headings=PUSH,
)
@click.argument("folder", metavar="FOLDER", type=composed_path)
@hub_target
@option(
    "--license ID",
    "The license of the whole, an identifier of the Hub. [default: derived from the members' licenses]",
    "license_id",
)
@file("--sign KEY", "Sign the folder first, as reg sign does. A signature in the folder is pushed in any case.")
@pass_session
def push(
    session: Session, /, folder: Path, repo: str, license_id: str | None, sign: Path | None, **target: Any
) -> None:
    """Push a composed FOLDER to REPO, ORG/NAME on the Hub, in one commit, and verify the upload.

    FOLDER must be unchanged since it was composed. Scores, languages and the members' locations on the Hub are added to
    the model card. If interrupted, repeat the command to resume.
    """
    from registry.hub.target import Target

    repository = Target.parse(repo, **target)
    if folder.is_dir():
        announce(f"checking {folder} before the push")
    with session.registry() as registry:
        pushed = registry.push(folder, repository, license=license_id, sign=sign)
    print_pushed(pushed)
    next_step(loading(pushed.repo_id, pushed.revision))


def print_pushed(pushed: "Pushed") -> None:
    """Print the result of a push; with --quiet only the commit."""
    if printed_json(pushed):
        return
    action = "pushed to" if pushed.added else "already up to date:"
    end = f"{pushed.revision}, commit {short(pushed.commit)}, {size(pushed.nbytes)} verified"
    done(pushed.commit, f"{action} {pushed.url}  {end}")


@command("reg push-expert math ORG/math-expert", headings=PUSH)
@click.argument("ref", metavar="NAME[@V]")
@hub_target
@flag("--calibration", "Push kept calibration tokens too; tokens that the expert generated itself are always pushed.")
@file("--sign KEY", "Sign it with an SSH key, for reg add-expert --signers.")
@pass_session
def push_expert(session: Session, /, ref: str, repo: str, calibration: bool, sign: Path | None, **target: Any) -> None:
    """Push a registered expert with its statistics to REPO, ORG/NAME on the Hub.

    Elsewhere, reg add-expert NAME hf://ORG/NAME then registers it without data and without a forward pass, under the
    same digest. The whole checkpoint is pushed, so that it loads with transformers as well.
    """
    from registry.hub.target import Target

    repository = Target.parse(repo, **target)
    announce(f"reading {ref} for the push")
    with session.registry() as registry:
        pushed = registry.push_expert(ref, repository, calibration=calibration, sign=sign)
    print_pushed(pushed)
    at = "" if pushed.revision == "main" else f"@{pushed.revision}"
    registering = shlex.join(["reg", "add-expert", ref.partition("@")[0], f"hf://{pushed.repo_id}{at}"])
    next_step(f"elsewhere: {registering}")
