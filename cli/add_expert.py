"""reg add-expert."""

from pathlib import Path
from typing import Any

import click

from cli.options import annotations, calibration, existing_folder, pass_settings
from cli.registered import print_registration
from cli.session import Session, as_json, pass_session


@click.command()
@click.argument("name")
@click.argument("checkpoint", metavar="CKPT", type=existing_folder)
@calibration
@annotations
@click.option("--keep-calibration", is_flag=True, help="Store the calibration tokens too.")
@as_json
@pass_session
def add_expert(
    session: Session,
    /,
    name: str,
    checkpoint: Path,
    data: tuple[Path, ...],
    tags: dict[str, str],
    license_id: str | None,
    alias: str | None,
    keep_calibration: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Register the Hugging Face folder CKPT as the next version of expert NAME.

    Statistics are taken on --data, else on CKPT's own calibration.* file; else those CKPT carries (reg collect) are
    used; else the expert writes its own calibration text.
    """
    with session.registry() as registry:
        registration = registry.add_expert(
            name,
            checkpoint,
            data=data,
            settings=pass_settings(**settings),
            tags=tags,
            license=license_id,
            alias=alias,
            keep_calibration=keep_calibration,
        )
    print_registration(registration, as_json)
