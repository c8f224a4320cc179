"""reg train."""

from pathlib import Path
from typing import Any

import click

from cli.option_groups import TRAINING, GroupedCommand
from cli.options import Choice, file_path
from cli.output import as_json
from cli.session import Session, pass_session
from cli.trained_output import print_trained
from cli.training_options import mixture_text, training_options, weight_products
from cli.worker import trained_as_worker


@click.command(
    cls=GroupedCommand,
    headings=TRAINING,
    examples=(
        "reg train moe/ --train all --data code --data math --out trained/",
        "reg train moe/ --train routers --data text.jsonl --out trained/",
    ),
)
@click.argument("folder", metavar="FOLDER", type=file_path)
@click.option(
    "--train",
    type=Choice(["routers", "mlps", "all", "projectors"]),
    required=True,
    metavar="PART",
    help="routers: the routers alone (DUME+), as reg train-router does; mlps: the experts' MLPs and the routers; all: "
    "every weight (BTX); projectors: those of members of several architectures, and their router (MergeME).",
)
@mixture_text
@training_options(
    lr="3e-4; routers: 0.002",
    warmup="a twentieth of all steps; routers: a tenth",
    weight_decay="0.1; routers: 0",
    balance="0.01; routers: 0",
)
@weight_products("float32 for routers alone")
@click.option("--force", is_flag=True, help="Replace --out if it is an earlier composition.")
@as_json
@pass_session
def train(
    session: Session,
    /,
    folder: Path,
    data: tuple[str, ...],
    out: Path,
    force: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train weights of a composed FOLDER on the language-model loss.

    If interrupted, repeat the command to resume. The result is recorded as a composition, and the tensors that changed
    are stored, so that reg reproduce can write it again.
    """
    from registry import MixtureTraining
    from registry.training.processes import leading

    if trained_as_worker():
        return
    with leading(), session.registry() as registry:
        trained = registry.train(folder, out, data, MixtureTraining(**settings), force=force)
    print_trained(trained, settings["train"], folder, out, as_json, tokens=settings["tokens"])
