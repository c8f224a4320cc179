"""reg train-expert."""

from pathlib import Path
from typing import Any

import click

from cli.next_steps import after_registration
from cli.option_groups import TRAINING, GroupedCommand
from cli.options import Choice, advanced, annotations, file_path
from cli.output import as_json, done, next_step, note, print_json, short
from cli.session import Session, pass_session
from cli.trained_output import amount
from cli.training_options import training_options, weight_products
from cli.version_output import version_document
from cli.worker import trained_as_worker
from registry.composition.trained.trained_parts import trained_tokens


@click.command(
    cls=GroupedCommand,
    headings=TRAINING,
    examples=(
        "reg train-expert law --base base --data law.jsonl",
        "reg train-expert law --base base --data law.jsonl --mlp lora:8 --out law/",
    ),
)
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
@advanced(
    "--coordinate",
    is_flag=True,
    help="Train the MLPs beside the frozen ones of BASE, with a router row of their own in every layer (FlexOlmo): for "
    "--router anchored.",
)
@advanced(
    "--router-bias",
    is_flag=True,
    help="With --coordinate: a bias trains beside each row. A mixture with one carries a modelling file.",
)
@advanced(
    "--public-data",
    multiple=True,
    type=file_path,
    metavar="FILE",
    help="Public text, with --coordinate: the router rows begin as the differences of the embeddings of both texts; "
    "without, at 0 (repeatable).",
)
@training_options()
@weight_products()
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
    from registry.training.processes import leading

    if trained_as_worker():
        return
    with leading(), session.registry(create=True) as registry:
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
                "trained_tokens": trained_tokens(trained.document["training"]),
            }
        )
        return
    used = amount(trained.document["training"], settings["tokens"])
    loss = f"  loss on {trained.tokens:,} held-out tokens: {losses.before:.4f} before, {losses.after:.4f} after"
    if registered is None:
        done(str(trained.out), f"trained {name} in {used}, into {trained.out}", loss)
    else:
        version = registered.version
        verb = "registered" if registered.added else "already registered as"
        done(version.ref, f"trained {name} in {used}; {verb} {version.ref}  {short(version.digest)}", loss)
    spoiled = losses.after >= losses.before
    if spoiled:
        note("  the loss did not improve: train on more data, longer, or with a smaller --lr")
    if registered is None:
        next_step(["add-expert", name, str(trained.out)])
    elif spoiled:
        next_step(["opt-out", registered.version.ref])
    else:
        next_step(after_registration(registered.version.name, registered.relations, registered.overlaps))
