"""reg add-base."""

import click

from cli.option_groups import GroupedCommand
from cli.options import annotations, checkpoint, remote_code
from cli.output import as_json
from cli.session import Session, pass_session
from cli.version_output import print_registration


@click.command(
    cls=GroupedCommand,
    examples=("reg add-base base checkpoints/base --license apache-2.0", "reg add-base base hf://ORG/NAME@REVISION"),
)
@click.argument("name")
@checkpoint
@annotations
@remote_code
@as_json
@pass_session
def add_base(
    session: Session,
    name: str,
    checkpoint: str,
    tags: dict[str, str],
    license_id: str | None,
    alias: str | None,
    remote_code: bool,
    as_json: bool,
) -> None:
    """Register CKPT, a Hugging Face folder or hf://ORG/NAME[@REVISION], as the next version of base model NAME.

    An adapter is merged into the base model that its configuration names.
    """
    with session.registry(create=True) as registry:
        registration = registry.add_base(
            name, checkpoint, tags=tags, license=license_id, alias=alias, remote_code=remote_code
        )
    print_registration(registration, as_json)
