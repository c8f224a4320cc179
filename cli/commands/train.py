"""reg train."""

from pathlib import Path
from typing import Any

import click

from cli.options import Choice, Integer, file_path
from cli.output import as_json
from cli.session import Session, pass_session
from cli.trained_output import print_trained


@click.command()
@click.argument("folder", metavar="FOLDER", type=file_path)
@click.option(
    "--train",
    type=Choice(["routers", "mlps", "all"]),
    required=True,
    metavar="PART",
    help="routers: the routers alone (DUME+), as reg train-router does; mlps: the experts' MLPs and the routers; all: "
    "every weight (BTX).",
)
@click.option(
    "--data",
    multiple=True,
    required=True,
    metavar="FILE|NAME",
    help="Training text: .txt, .jsonl, .jsonl.gz, .parquet; or a member registered with --keep-calibration "
    "(repeatable; each provides the same number of windows).",
)
@click.option("--out", type=file_path, required=True, metavar="DIR", help="The folder to write.")
@click.option(
    "--tokens", type=Integer(1), metavar="N", default=409_600, show_default=True, help="Training tokens in total."
)
@click.option("--seq-len", type=Integer(2), metavar="N", default=256, show_default=True, help="Tokens per window.")
@click.option("--batch-size", type=Integer(1), metavar="N", default=8, show_default=True, help="Windows per batch.")
@click.option(
    "--accumulate", type=Integer(1), metavar="N", default=1, show_default=True, help="Batches per step of AdamW."
)
@click.option(
    "--lr", type=float, metavar="X", help="The highest learning rate of AdamW. [default: 3e-4; routers: 0.002]"
)
@click.option(
    "--warmup",
    type=Integer(0),
    metavar="N",
    help="Steps of linear warm-up. [default: a twentieth of all steps; routers: a tenth]",
)
@click.option("--weight-decay", type=float, metavar="X", help="Weight decay of matrices. [default: 0.1; routers: 0]")
@click.option(
    "--balance", type=float, metavar="X", help="Weight of the load-balance loss (BTX). [default: 0.01; routers: 0]"
)
@click.option(
    "--seed", type=Integer(0), metavar="N", default=0, show_default=True, help="Seed of windows and their order."
)
@click.option("--device", metavar="DEVICE", help="cpu or cuda. [default: the GPU if there is one]")
@click.option(
    "--dtype",
    type=Choice(["auto", "bfloat16", "float32"]),
    default="auto",
    show_default=True,
    metavar="DTYPE",
    help="The dtype of the products: bfloat16, float32, or auto: bfloat16 where the device is fast in it, and float32 "
    "for routers alone. Weights and moments stay in float32.",
)
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

    with session.registry() as registry:
        trained = registry.train(folder, out, data, MixtureTraining(**settings), force=force)
    print_trained(trained, settings["train"], folder, out, as_json)
