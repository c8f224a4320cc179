"""reg add-expert."""

from pathlib import Path
from typing import Any

import click

from cli.cluster import cluster_options, connected
from cli.option_groups import STATISTICS, GroupedCommand
from cli.options import (
    adapter_base,
    allow_unrelated,
    annotations,
    calibration,
    checkpoint,
    pass_settings,
    remote_code,
    tokenizer_of,
)
from cli.output import as_json
from cli.session import Session, pass_session
from cli.version_output import print_registration


@click.command(
    cls=GroupedCommand,
    headings=STATISTICS,
    examples=(
        "reg add-expert math checkpoints/math --data math.jsonl",
        "reg add-expert math hf://ORG/math-expert",
        "reg add-expert poems adapters/poems --base base --data poems.jsonl",
    ),
)
@click.argument("name")
@checkpoint
@calibration
@cluster_options
@annotations
@adapter_base
@click.option("--keep-calibration", is_flag=True, help="Store the calibration tokens too.")
@allow_unrelated
@remote_code
@tokenizer_of
@as_json
@pass_session
def add_expert(
    session: Session,
    /,
    name: str,
    checkpoint: str,
    data: tuple[Path, ...],
    tags: dict[str, str],
    license_id: str | None,
    alias: str | None,
    base: str | None,
    keep_calibration: bool,
    allow_unrelated: bool,
    remote_code: bool,
    tokenizer_of: str | None,
    ray: str | None,
    num_gpus: float | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Register CKPT as the next version of expert NAME.

    CKPT is a Hugging Face folder or hf://ORG/NAME[@REVISION]: a whole model, or a PEFT adapter, which is merged into
    its base model.

    Statistics are collected on --data, else on a calibration.* file in CKPT. Without both, the statistics in CKPT (from
    reg collect) are used, and the options of the pass have no effect. Without these too, the expert generates its own
    calibration text. With --sites counts, tokens are only counted, and no model runs unless it generates the text.
    """
    with connected(ray, num_gpus) as cluster, session.registry(create=True, cluster=cluster) as registry:
        registration = registry.add_expert(
            name,
            checkpoint,
            data=data,
            settings=pass_settings(**settings),
            tags=tags,
            license=license_id,
            alias=alias,
            keep_calibration=keep_calibration,
            base=base,
            allow_unrelated=allow_unrelated,
            remote_code=remote_code,
            tokenizer_of=tokenizer_of,
        )
    labels = [statistics.calibration_label for statistics in registration.version.statistics]
    own = registration.self_sampled or any(label.startswith("calibration.") for label in labels)
    print_registration(registration, as_json, carried=not data and not own)
