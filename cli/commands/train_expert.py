"""reg train-expert."""

from pathlib import Path
from typing import Any

import click

from cli.options import Choice, Integer, annotations, file_path
from cli.output import as_json, count, done, note, print_json
from cli.session import Session, pass_session
from cli.version_output import version_document


@click.command()
@click.argument("name")
@click.option(
    "--base",
    required=True,
    metavar="BASE",
    help="The model to begin from: a registered NAME[@V], a folder or hf://ORG/NAME.",
)
@click.option(
    "--data",
    multiple=True,
    required=True,
    type=file_path,
    metavar="FILE",
    help="Training text: .txt, .jsonl, .jsonl.gz, .parquet (repeatable). Statistics are collected on it too.",
)
@click.option(
    "--trunk",
    type=Choice(["frozen", "free"]),
    default="frozen",
    show_default=True,
    metavar="TRUNK",
    help="frozen: only the MLPs train, and all experts of one base model share the rest to the byte; free: all weights "
    "train.",
)
@click.option(
    "--mlp",
    default="full",
    show_default=True,
    metavar="full|lora:R",
    help="Train the MLPs in full, or a low-rank change of rank R, which is added to them at the end.",
)
@click.option(
    "--coordinate",
    is_flag=True,
    help="Train the MLPs beside the frozen ones of BASE, with a router row of their own in every layer (FlexOlmo): for "
    "--router anchored.",
)
@click.option(
    "--router-bias",
    is_flag=True,
    help="With --coordinate: a bias trains beside each row. A mixture with one carries a modelling file.",
)
@click.option(
    "--public-data",
    multiple=True,
    type=file_path,
    metavar="FILE",
    help="Public text, with --coordinate: the router rows begin as the differences of the embeddings of both texts; "
    "without, at 0 (repeatable).",
)
@click.option(
    "--tokens", type=Integer(1), metavar="N", default=409_600, show_default=True, help="Training tokens in total."
)
@click.option("--seq-len", type=Integer(2), metavar="N", default=256, show_default=True, help="Tokens per window.")
@click.option("--batch-size", type=Integer(1), metavar="N", default=8, show_default=True, help="Windows per batch.")
@click.option(
    "--accumulate", type=Integer(1), metavar="N", default=1, show_default=True, help="Batches per step of AdamW."
)
@click.option(
    "--lr", type=float, metavar="X", default=3e-4, show_default=True, help="The highest learning rate of AdamW."
)
@click.option(
    "--warmup", type=Integer(0), metavar="N", help="Steps of linear warm-up. [default: a twentieth of all steps]"
)
@click.option(
    "--weight-decay", type=float, metavar="X", default=0.1, show_default=True, help="Weight decay of matrices."
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
    help="The dtype of the products: bfloat16, float32, or auto: bfloat16 where the device is fast in it. Weights and "
    "moments stay in float32.",
)
@click.option("--keep-calibration", is_flag=True, help="Store the calibration tokens too.")
@click.option("--out", type=file_path, metavar="DIR", help="Write the checkpoint to DIR, and register nothing.")
@annotations
@as_json
@pass_session
def train_expert(
    session: Session,
    /,
    name: str,
    base: str,
    data: tuple[Path, ...],
    public_data: tuple[Path, ...],
    out: Path | None,
    keep_calibration: bool,
    tags: dict[str, str],
    license_id: str | None,
    alias: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train expert NAME from a base model, and register it with its statistics.

    If interrupted, repeat the command to resume. The version stores how it was trained, and its loss curve.
    """
    from registry import ExpertTraining

    with session.registry(create=True) as registry:
        trained = registry.train_expert(
            name,
            base,
            data,
            ExpertTraining(**settings),
            public_data=public_data,
            out=out,
            tags=tags,
            license=license_id,
            alias=alias,
            keep_calibration=keep_calibration,
        )
    losses, registered = trained.losses, trained.registration
    if as_json:
        print_json(
            {
                "version": None if registered is None else version_document(registered.version),
                "out": trained.out,
                "training": trained.document,
                "loss": [losses.before, losses.after],
                "tokens": trained.tokens,
            }
        )
        return
    steps = count(len(losses.steps), "step")
    loss = f"  loss on {trained.tokens:,} held-out tokens: {losses.before:.4f} before, {losses.after:.4f} after"
    if registered is None:
        done(str(trained.out), f"trained {name} in {steps} into {trained.out}", loss)
    else:
        version = registered.version
        verb = "registered" if registered.added else "already registered as"
        done(version.ref, f"trained {name} in {steps}; {verb} {version.ref}  {version.digest}", loss)
    if losses.after >= losses.before:
        note("  the loss did not improve: train on more data, longer, or with a smaller --lr")
