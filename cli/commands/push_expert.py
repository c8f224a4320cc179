"""reg push-expert."""

import shlex

import click

from cli.commands.push import print_pushed
from cli.option_groups import GroupedCommand
from cli.options import hub_target
from cli.output import announce, as_json, next_step, print_json
from cli.session import Session, pass_session


@click.command(cls=GroupedCommand, examples=("reg push-expert math ORG/math-expert",))
@click.argument("ref", metavar="NAME[@V]")
@hub_target
@click.option(
    "--calibration",
    is_flag=True,
    help="Push kept calibration tokens too; tokens that the expert generated itself are always pushed.",
)
@as_json
@pass_session
def push_expert(
    session: Session,
    ref: str,
    repo: str,
    revision: str | None,
    private: bool,
    create_pr: bool,
    force: bool,
    calibration: bool,
    as_json: bool,
) -> None:
    """Push a registered expert with its statistics to REPO, ORG/NAME on the Hub.

    Elsewhere, reg add-expert NAME hf://ORG/NAME then registers it without data and without a forward pass, under the
    same digest. The whole checkpoint is pushed, so that it loads with transformers as well.
    """
    from registry.hub.target import Target

    target = Target.parse(repo, revision=revision, private=private, create_pr=create_pr, force=force)
    announce(f"reading {ref} for the push")
    with session.registry() as registry:
        pushed = registry.push_expert(ref, target, calibration=calibration)
    if as_json:
        print_json(pushed)
        return
    print_pushed(pushed)
    at = "" if pushed.revision == "main" else f"@{pushed.revision}"
    registering = shlex.join(["reg", "add-expert", ref.partition("@")[0], f"hf://{pushed.repo_id}{at}"])
    next_step(f"elsewhere: {registering}")
