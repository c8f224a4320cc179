"""Commands that train experts from a base model: train-expert, train-soup, train-simoe."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from cli.next_steps import after_registration, composing
from cli.option_groups import TRAINING, command
from cli.options import choice, file, files, flag, integer, number, option
from cli.output import done, next_step, note, printed_json
from cli.session import Session, pass_session
from cli.shared_options import annotations, keep_calibration, take
from cli.training import (
    amount,
    loss_line,
    note_of_loss,
    result_document,
    training_options,
    weight_products,
)
from cli.version_output import version_document
from registry.io.display import few, short
from registry.names.suggest import fresh

NEARLY_ALL = 0.99
"""Share of closed gates from which a SIMoE is nearly the base model, where fewer were asked for."""


@command(
    "reg train-expert law --base base --data law.jsonl",
    "reg train-expert law --base base --data law.jsonl --lora 16",
    headings=TRAINING,
)
@click.argument("name")
@option("--base BASE", "The model to begin from: a registered NAME[@V], a folder or hf://ORG/NAME.", required=True)
@files(
    "--data",
    "Training text: .txt, .jsonl, .jsonl.gz, .parquet (repeatable). Of conversations the answers alone are learned. "
    "Statistics are collected on it too.",
    required=True,
)
@choice(
    "--trunk",
    ["frozen", "free"],
    "frozen: only the MLPs train, and all experts of one base model share the rest to the byte; free: all "
    "weights train.",
    "frozen",
)
@integer(
    "--lora",
    "Train a LoRA adapter of rank N of all linear layers, and no weight of BASE: a PEFT folder.",
    least=1,
)
@flag(
    "--coordinate",
    "Train the MLPs beside the frozen ones of BASE, with a router row of their own in every layer (FlexOlmo): "
    "for --router anchored.",
    advanced=True,
)
@flag(
    "--router-bias",
    "With --coordinate: a bias trains beside each row, 0 or less. A mixture with one carries a modelling file.",
    advanced=True,
)
@files(
    "--public-data",
    "Public text, with --coordinate: the router rows begin as the differences of the embeddings of both texts; "
    "without, at 0 (repeatable).",
    advanced=True,
)
@training_options()
@weight_products()
@keep_calibration
@file("--out DIR", "Write the checkpoint to DIR, and register nothing.")
@annotations
@pass_session
def train_expert(session: Session, /, name: str, **settings: Any) -> None:
    """Train expert NAME from a base model, and register it with its statistics.

    If interrupted, repeat the command to resume. The version stores how it was trained, and its loss curve.
    """
    from registry import ExpertTraining
    from registry.training.launcher import joined

    with joined() as processes, session.registry(create=True) as registry:
        training = take(ExpertTraining, settings)
        trained = registry.train_expert(name, settings=training, **settings)
    if not processes.is_main:
        return
    registered = trained.registration
    version = None if registered is None else version_document(registered.version)
    if printed_json({"version": version, "out": trained.out, "training": trained.document, **result_document(trained)}):
        return
    used, loss = amount(trained, training.tokens), loss_line(trained)
    if registered is None:
        done(str(trained.out), f"trained {name} in {used}, into {trained.out}", loss)
    else:
        ref, digest = registered.version.ref, short(registered.version.digest)
        verb = "registered" if registered.added else "already registered as"
        done(ref, f"trained {name} in {used}; {verb} {ref}  {digest}", loss)
    spoiled = note_of_loss(trained)
    if registered is None:
        next_step(["add-expert", name, str(trained.out)])
    elif spoiled:
        next_step(["opt-out", registered.version.ref])
    else:
        next_step(after_registration(registered.version, registered.relations, registered.overlaps, registered.beside))


def _files(_context: click.Context, _option: click.Parameter, texts: Sequence[str]) -> dict[str, list[Path]]:
    """Return domain → files; a file without a domain's name is a domain of its own, which it names."""
    files: dict[str, list[Path]] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals:
            name, path = Path(text).name.split(".")[0], text
        if not (name and path):
            raise click.BadParameter(f"{text!r} is not of the form FILE or NAME=FILE")
        if not equals and name in files:
            raise click.BadParameter(f"two files would be the domain {name!r}: name them: NAME={path}")
        files.setdefault(name, []).append(Path(path))
    return files


@command(
    "reg train-soup mix --base base --domains a.jsonl --domains b.jsonl --experts 8",
    "reg train-soup mix --base base --domains text.jsonl --clusters 16 --experts 8",
    headings=TRAINING,
)
@click.argument("name")
@option("--base BASE", "The base model to begin from: a registered NAME[@V], a folder or hf://ORG/NAME.", required=True)
@option(
    "--domains [NAME=]FILE",
    "Text of a domain: .txt, .jsonl, .jsonl.gz, .parquet (repeatable, two domains or more). Without a NAME it is "
    "the file's own up to its first dot; files of one NAME are one domain.",
    multiple=True,
    required=True,
    callback=_files,
)
@integer(
    "--clusters K",
    "Make the domains from all documents of all files together, by k-means: cluster-1, the largest, to "
    "cluster-K. [default: domains are files]",
    least=2,
)
@integer("--experts", "Number of experts.", required=True)
@integer("--support", "Number of domains in the mixture of a step. [default: 4, or all of fewer]", advanced=True)
@integer(
    "--rank R",
    "Give each expert's matrices the rank R. Without, training holds N + 1 copies of the weights, each with a "
    "gradient and two moments; with it, one copy and the factors. [default: experts in full]",
)
@integer("--hidden", "Hidden units of the router.", 64, advanced=True)
@training_options(lr=1e-4, warmup="a twentieth of all steps, 2,000 at most", weight_decay=0.0)
@weight_products(fsdp=False)
@annotations
@pass_session
def train_soup(session: Session, /, name: str, **settings: Any) -> None:
    """Train a soup: shared weights and experts that reg instantiate combines into one model for any mix of domains.

    Shared weights are registered as base model NAME, the experts as NAME-1 to NAME-N. If interrupted, repeat the
    command to resume. A domain cannot be taken out again: all weights are trained on all domains.
    """
    from registry import SoupTraining

    with session.registry(create=True) as registry:
        training = take(SoupTraining, settings)
        trained = registry.train_soup(name, settings=training, **settings)
    shared, domains = trained.shared.version, trained.document["training"]["domains"]
    experts = [version_document(expert.version) for expert in trained.experts]
    result = {"training": trained.document, **result_document(trained)}
    if printed_json({"shared": version_document(shared), "experts": experts, **result}):
        return
    listed = _first_to_last([expert.version.ref for expert in trained.experts])
    done(
        shared.ref,
        f"trained {name} in {amount(trained, training.tokens)}; registered {shared.ref}  {short(shared.digest)}",
        f"  experts {listed}; domains {few(domains)}",
        loss_line(trained, ", each domain's own model"),
    )
    note_of_loss(trained)
    next_step(["instantiate", name, "--weights", f"{domains[0]}=1", "--out", fresh("model/")])


@command("reg train-simoe found --base base --data text.jsonl --experts 4", headings=TRAINING)
@click.argument("name")
@option("--base BASE", "The registered base model to begin from, NAME[@V].", required=True)
@files("--data", "Training text: .txt, .jsonl, .jsonl.gz, .parquet (repeatable); no domains are named.", required=True)
@integer("--experts", "Number of experts.", 8)
@number("--sparsity TAU", "Least share of zeros in the experts' masks, from 0 to below 1.", 0.75)
@number(
    "--overlap BETA",
    "Weight of the masks' orthogonal penalty in the loss. [default: 5e-5, or 0 with one expert]",
    advanced=True,
)
@integer("--prompt-tokens", "First tokens of a window, which the router sees; the loss counts those after them.", 32)
@number("--gate-lr", "The highest learning rate of the masks' gates and of the router.", 0.1, advanced=True)
@number("--dual-lr", "Size of a step of the multiplier that enforces the sparsity.", 0.01, advanced=True)
@training_options(decays="Weight decay of the shared weights, towards the base model.")
@weight_products(fsdp=False)
@annotations
@pass_session
def train_simoe(session: Session, /, name: str, **settings: Any) -> None:
    """Train sparse interpolated experts: shared weights, a mask of their rows for each expert, and a router.

    Experts are found in the text, not named. They are registered as NAME-1 to NAME-N, each a dense model; reg compose
    --to simoe puts any of them together as they were trained. Training holds the base model, and as many weights again
    as its linear layers have, these with a gradient and two moments. If interrupted, repeat the command to resume. No
    expert's text can be taken out of the others: the shared weights are trained by all.
    """
    from registry import SimoeTraining

    with session.registry() as registry:
        training = take(SimoeTraining, settings)
        trained = registry.train_simoe(name, settings=training, **settings)
    masks = trained.document["masks"]
    pairs = [share for number, row in enumerate(masks["overlap"]) for share in row[:number]]
    overlap = fmean(pairs) if pairs else 0.0
    experts = [version_document(expert.version) for expert in trained.experts]
    found = {"sparsity": masks["sparsity"], "closed": masks["closed"], "overlap": overlap}
    if printed_json({"experts": experts, "training": trained.document, **result_document(trained), **found}):
        return
    refs = [expert.version.ref for expert in trained.experts]
    closed = f", after closing {masks['closed']:,} gates" if masks["closed"] else ""
    done(
        refs[0],
        f"trained {name} in {amount(trained, training.tokens)}; registered {_first_to_last(refs)}",
        f"  masks: {masks['sparsity']:.1%} zeros{closed}; mean overlap {overlap:.2f}",
        loss_line(trained, " after the prompt"),
    )
    note_of_loss(trained)
    if masks["sparsity"] > NEARLY_ALL > training.sparsity:
        note("nearly every gate is closed, so these are the base model: train longer, or with a smaller --overlap")
    next_step(composing(refs, "--to", "simoe"))


def _first_to_last(refs: Sequence[str]) -> str:
    return refs[0] if len(refs) == 1 else f"{refs[0]} to {refs[-1]}"
