"""reg train-router."""

from pathlib import Path
from typing import Any

import click

from cli.option_groups import TRAINING, GroupedCommand
from cli.options import DTYPES, Integer, advanced
from cli.output import as_json
from cli.places import composed_place
from cli.session import Session, pass_session
from cli.trained_output import print_trained
from cli.training_options import mixture_text, training_options


@click.command(
    cls=GroupedCommand,
    headings=TRAINING,
    examples=("reg train-router moe/ --data code --data math --out trained/",),
)
@click.argument("folder", metavar="FOLDER", type=composed_place)
@mixture_text
@training_options(
    by_tokens=False,
    lr=0.002,
    warmup="a tenth of --steps",
    weight_decay=0.0,
    decays="Weight decay towards the initial routers.",
    balance=0.0,
)
@advanced(
    "--top-k-train",
    type=Integer(2),
    metavar="N",
    help="Number of experts per token that training compares. [default: 2, or the folder's top-k if that is more]",
)
@advanced(
    "--temperature",
    type=float,
    metavar="X",
    default=1.0,
    show_default=True,
    help="Divisor of the router logits in this comparison.",
)
@advanced("--device", metavar="DEVICE", help="A torch device. [default: the GPU if there is one]")
@advanced(
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
