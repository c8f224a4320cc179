"""reg train-router."""

from pathlib import Path
from typing import Any

import click

from cli.options import DTYPES, Integer, file_path
from cli.output import as_json
from cli.session import Session, pass_session
from cli.trained_output import print_trained


@click.command()
@click.argument("folder", metavar="FOLDER", type=file_path)
@click.option(
    "--data",
    multiple=True,
    required=True,
    metavar="FILE|NAME",
    help="Training text: .txt, .jsonl, .jsonl.gz, .parquet; or a member registered with --keep-calibration "
    "(repeatable; each provides the same number of windows).",
)
@click.option("--out", type=file_path, required=True, metavar="DIR", help="The folder to write.")
@click.option("--steps", type=Integer(1), metavar="N", default=200, show_default=True, help="Number of batches.")
@click.option("--batch-size", type=Integer(1), metavar="N", default=8, show_default=True, help="Windows per batch.")
@click.option("--seq-len", type=Integer(2), metavar="N", default=256, show_default=True, help="Tokens per window.")
@click.option(
    "--lr", type=float, metavar="X", default=0.002, show_default=True, help="The highest learning rate of AdamW."
)
@click.option("--warmup", type=Integer(0), metavar="N", help="Steps of linear warm-up. [default: a tenth of --steps]")
@click.option(
    "--weight-decay",
    type=float,
    metavar="X",
    default=0.0,
    show_default=True,
    help="Weight decay towards the initial routers.",
)
@click.option(
    "--seed", type=Integer(0), metavar="N", default=0, show_default=True, help="Seed of windows and their order."
)
@click.option(
    "--top-k-train",
    type=Integer(2),
    metavar="N",
    help="Number of experts per token that training compares. [default: 2, or the folder's top-k if that is more]",
)
@click.option(
    "--temperature",
    type=float,
    metavar="X",
    default=1.0,
    show_default=True,
    help="Divisor of the router logits in this comparison.",
)
@click.option(
    "--balance", type=float, metavar="X", default=0.0, show_default=True, help="Weight of the load-balance loss (BTX)."
)
@click.option("--device", metavar="DEVICE", help="A torch device. [default: the GPU if there is one]")
@click.option(
    "--dtype",
    type=DTYPES,
    metavar="DTYPE",
    default="float32",
    show_default=True,
    help="The dtype of the computation: bfloat16, float16 or float32.",
)
@click.option("--force", is_flag=True, help="Replace --out if it is an earlier composition.")
@as_json
@pass_session
def train_router(
    session: Session,
    /,
    folder: Path,
    data: tuple[str, ...],
    out: Path,
    force: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train only the routers of a composed FOLDER on the language-model loss.

    If interrupted, repeat the command to resume. The result is recorded as a composition.
    """
    from registry import TrainSettings

    with session.registry() as registry:
        trained = registry.train_router(folder, out, data, TrainSettings(**settings), force=force)
    print_trained(trained, "the routers", folder, out, as_json)
