"""reg add-base."""

from pathlib import Path

import click

from cli.options import annotations, existing_folder
from cli.registered import print_registration
from cli.session import Session, as_json, pass_session


@click.command()
@click.argument("name")
@click.argument("checkpoint", metavar="CKPT", type=existing_folder)
@annotations
@as_json
@pass_session
def add_base(
    session: Session,
    name: str,
    checkpoint: Path,
    tags: dict[str, str],
    license_id: str | None,
    alias: str | None,
    as_json: bool,
) -> None:
    """Register the Hugging Face folder CKPT as the next version of base model NAME."""
    with session.registry() as registry:
        registration = registry.add_base(name, checkpoint, tags=tags, license=license_id, alias=alias)
    print_registration(registration, as_json)
