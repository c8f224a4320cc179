"""Commands that train a composed folder, and choose text for it: train, train-router, proxy."""

from pathlib import Path
from typing import Any

import click

from cli.option_groups import TRAINING, command
from cli.options import choice, composed_path, device, file, file_path, flag, integer, number, option, options, split
from cli.output import done, next_step, print_table, printed_json
from cli.session import Session, pass_session
from cli.training import print_trained, training_options, weight_products
from registry.names.suggest import fresh

_data_and_out = options(
    option(
        "--data FILE|NAME",
        "Training text: .txt, .jsonl, .jsonl.gz, .parquet; or a member registered with --keep-calibration "
        "(repeatable; each provides the same number of windows).",
        multiple=True,
        required=True,
    ),
    file("--out DIR", "The folder to write.", required=True),
    flag("--force", "Replace --out if it is an earlier composition."),
)


@command(
    "reg train moe/ --train all --data code --data math --out trained/",
    "reg train moe/ --train routers --data text.jsonl --out trained/",
    headings=TRAINING,
)
@click.argument("folder", metavar="FOLDER", type=file_path)
@choice(
    "--train PART",
    ["routers", "mlps", "all", "projectors"],
    "routers: the routers alone (DUME+), as reg train-router does; mlps: the experts' MLPs and the routers; "
    "all: every weight (BTX); projectors: those of members of several architectures, and their router "
    "(MergeME).",
    required=True,
)
@_data_and_out
@training_options(
    lr="3e-4; routers: 0.002",
    warmup="a twentieth of all steps; routers: a tenth",
    weight_decay="0.1; routers: 0",
    balance="0.01; routers: 0",
)
@weight_products("float32 for routers alone")
@pass_session
def train(session: Session, /, folder: Path, data: tuple[str, ...], out: Path, force: bool, **settings: Any) -> None:
    """Train weights of a composed FOLDER on the language-model loss.

    If interrupted, repeat the command to resume. The result is recorded as a composition, and the tensors that changed
    are stored, so that reg reproduce can write it again.
    """
    from registry import MixtureTraining
    from registry.training.launcher import joined

    with joined() as processes, session.registry() as registry:
        trained = registry.train(folder, out, data, MixtureTraining(**settings), force=force)
    if processes.is_main:
        print_trained(trained, settings["train"], folder, out, tokens=settings["tokens"])


@command("reg train-router moe/ --data code --data math --out trained/", headings=TRAINING)
@click.argument("folder", metavar="FOLDER", type=composed_path)
@_data_and_out
@training_options(
    by_tokens=False,
    lr=0.002,
    warmup="a tenth of --steps",
    weight_decay=0.0,
    decays="Weight decay towards the initial routers.",
    balance=0.0,
)
@integer(
    "--top-k-train",
    "Number of experts per token that training compares; 1 is for --gating softmax-topk. [default: 2, or the folder's "
    "top-k if that is more]",
    advanced=True,
)
@number("--temperature", "Divisor of the router logits in this comparison.", 1.0, advanced=True)
@flag("--no-whitening", "Train the weights as they are; --lr is then in their units (DUME+: 1e-5).", advanced=True)
@device
@choice(
    "--dtype",
    ["bfloat16", "float16", "float32"],
    "The dtype of the computation: bfloat16, float16 or float32.",
    "float32",
    advanced=True,
)
@pass_session
def train_router(
    session: Session, /, folder: Path, data: tuple[str, ...], out: Path, force: bool, **settings: Any
) -> None:
    """Train only the routers of a composed FOLDER on the language-model loss.

    If interrupted, repeat the command to resume. The result is recorded as a composition.
    """
    from registry import TrainSettings

    settings["whiten"] = not settings.pop("no_whitening")
    with session.registry() as registry:
        trained = registry.train_router(folder, out, data, TrainSettings(**settings), force=force)
    print_trained(trained, "the routers", folder, out)


_SCORE = (
    "score of a document: the discriminant of the expert's text against the public text, mean over layers; the larger,",
    "the nearer to the expert, and below 0 nearer to the public text; to compare within one expert",
)


@command("reg proxy public.jsonl --experts law,math --base base --out proxy/")
@click.argument("files", metavar="FILE…", type=file_path, nargs=-1, required=True)
@option("--experts A,B@2,…", "The experts, in any order.", multiple=True, required=True)
@option("--base NAME[@V]", "The base model. [default: the only one registered]")
@file("--out DIR", "The folder to write; it appears whole.", required=True)
@integer("--documents", "Documents for each expert.", 500)
@device
@pass_session
def proxy(session: Session, /, files: tuple[Path, ...], experts: tuple[str, ...], out: Path, **settings: Any) -> None:
    """Choose from public text the documents nearest to each expert, to train routers on.

    FILE is .txt, .jsonl, .jsonl.gz or .parquet. The experts' statistics are compared with public text's: no text of
    theirs is needed. Each expert gets a file DIR/NAME.jsonl, for reg train-router --data. A score is the value of a
    linear discriminant: the larger, the nearer to the expert; below 0, nearer to the public text.
    """
    with session.registry() as registry:
        chosen = registry.proxy(split(experts), files, out, **settings)
    if printed_json([vars(one) for one in chosen]):
        return
    rows = [
        (one.name, f"{one.documents:,} of {one.candidates:,}", f"{one.best:.3g}", f"{one.least:.3g}") for one in chosen
    ]
    print_table(("expert", "documents", "best score", "least score"), rows)
    done(str(out), *_SCORE, f"written to {out}")
    data = [word for one in chosen for word in ("--data", str(one.path))]
    next_step(["train-router", "FOLDER", *data, "--out", fresh("trained/")])
