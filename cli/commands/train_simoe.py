"""reg train-simoe."""

from pathlib import Path
from statistics import fmean
from typing import Any

import click

from cli.next_steps import composing
from cli.option_groups import TRAINING, GroupedCommand
from cli.options import Integer, advanced, annotations, file_path
from cli.output import as_json, done, next_step, note, print_json
from cli.session import Session, pass_session
from cli.trained_output import amount
from cli.training_options import training_options, weight_products
from cli.version_output import version_document
from registry.composition.trained.trained_parts import trained_tokens


@click.command(
    cls=GroupedCommand,
    headings=TRAINING,
    examples=("reg train-simoe found --base base --data text.jsonl --experts 4",),
)
@click.argument("name")
@click.option("--base", required=True, metavar="BASE", help="The registered base model to begin from, NAME[@V].")
@click.option(
    "--data",
    type=file_path,
    multiple=True,
    required=True,
    metavar="FILE",
    help="Training text: .txt, .jsonl, .jsonl.gz, .parquet (repeatable); no domains are named.",
)
@click.option("--experts", type=Integer(1), metavar="N", default=8, show_default=True, help="Number of experts.")
@click.option(
    "--sparsity",
    type=float,
    metavar="TAU",
    default=0.75,
    show_default=True,
    help="Least share of zeros in the experts' masks, from 0 to below 1.",
)
@advanced(
    "--overlap",
    type=float,
    metavar="BETA",
    help="Weight of the masks' mean overlap in the loss. [default: 0.1, or 0 with one expert]",
)
@click.option(
    "--prompt-tokens",
    type=Integer(1),
    metavar="N",
    default=32,
    show_default=True,
    help="First tokens of a window, which the router sees; the loss counts those after them.",
)
@advanced(
    "--gate-lr",
    type=float,
    metavar="X",
    default=0.1,
    show_default=True,
    help="The highest learning rate of the masks' gates and of the router.",
)
@advanced(
    "--dual-lr",
    type=float,
    metavar="X",
    default=0.1,
    show_default=True,
    help="Size of a step of the multiplier that enforces the sparsity.",
)
@training_options(decays="Weight decay of the shared weights, towards the base model.")
@weight_products(fsdp=False)
@annotations
@as_json
@pass_session
def train_simoe(
    session: Session,
    /,
    name: str,
    base: str,
    data: tuple[Path, ...],
    tags: dict[str, str],
    license_id: str | None,
    alias: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train sparse interpolated experts: shared weights, a mask of their rows for each expert, and a router.

    Experts are found in the text, not named. They are registered as NAME-1 to NAME-N, each a dense model; reg compose
    --to simoe puts any of them together as they were trained. Training holds the base model, and as many weights again
    as its linear layers have, these with a gradient and two moments. If interrupted, repeat the command to resume. No
    expert's text can be taken out of the others: the shared weights are trained by all.
    """
    from registry import SimoeTraining

    with session.registry() as registry:
        trained = registry.train_simoe(
            name, base, data, SimoeTraining(**settings), tags=tags, license=license_id, alias=alias
        )
    losses, document, masks = trained.losses, trained.document, trained.document["masks"]
    count, matrix = len(masks["overlap"]), masks["overlap"]
    pairs = [matrix[one][other] for one in range(count) for other in range(one)]
    overlap = fmean(pairs) if pairs else 0.0
    if as_json:
        print_json(
            {
                "experts": [version_document(expert.version) for expert in trained.experts],
                "training": document,
                "loss": [losses.before, losses.after],
                "tokens": trained.tokens,
                "trained_tokens": trained_tokens(document["training"]),
                "sparsity": masks["sparsity"],
                "closed": masks["closed"],
                "overlap": overlap,
            }
        )
        return
    refs = [expert.version.ref for expert in trained.experts]
    listed = refs[0] if len(refs) == 1 else f"{refs[0]} to {refs[-1]}"
    closed = f", after closing {masks['closed']:,} gates" if masks["closed"] else ""
    done(
        refs[0],
        f"trained {name} in {amount(document['training'], settings['tokens'])}; registered {listed}",
        f"  masks: {masks['sparsity']:.1%} zeros{closed}; mean overlap {overlap:.2f}",
        f"  loss on {trained.tokens:,} held-out tokens after the prompt: {losses.before:.4f} before, "
        f"{losses.after:.4f} after",
    )
    if losses.after >= losses.before:
        note("  the loss did not improve: train on more data, longer, or with a smaller --lr")
    next_step(composing(refs, "--to", "simoe"))
