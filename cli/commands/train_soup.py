"""reg train-soup."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from cli.option_groups import TRAINING, GroupedCommand
from cli.options import Integer, advanced, annotations
from cli.output import as_json, done, next_step, note, print_json, short
from cli.session import Session, pass_session
from cli.trained_output import amount
from cli.training_options import training_options, weight_products
from cli.version_output import version_document
from registry.composition.trained.trained_parts import trained_tokens
from registry.destination.fresh import fresh
from registry.io.display import few


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


@click.command(
    cls=GroupedCommand,
    headings=TRAINING,
    examples=(
        "reg train-soup mix --base base --domains a.jsonl --domains b.jsonl --experts 8",
        "reg train-soup mix --base base --domains text.jsonl --clusters 16 --experts 8",
    ),
)
@click.argument("name")
@click.option(
    "--base",
    required=True,
    metavar="BASE",
    help="The base model to begin from: a registered NAME[@V], a folder or hf://ORG/NAME.",
)
@click.option(
    "--domains",
    multiple=True,
    required=True,
    metavar="[NAME=]FILE",
    callback=_files,
    help="Text of a domain: .txt, .jsonl, .jsonl.gz, .parquet (repeatable, two domains or more). Without a NAME it is "
    "the file's own up to its first dot; files of one NAME are one domain.",
)
@click.option(
    "--clusters",
    type=Integer(2),
    metavar="K",
    help="Make the domains from all documents of all files together, by k-means: cluster-1, the largest, to cluster-K. "
    "[default: domains are files]",
)
@click.option("--experts", type=Integer(1), required=True, metavar="N", help="Number of experts.")
@advanced(
    "--support",
    type=Integer(1),
    metavar="N",
    help="Number of domains in the mixture of a step. [default: 4, or all of fewer]",
)
@click.option(
    "--rank",
    type=Integer(1),
    metavar="R",
    help="Give each expert's matrices the rank R. Without, training holds N + 1 copies of the weights, each with a "
    "gradient and two moments; with it, one copy and the factors. [default: experts in full]",
)
@advanced("--hidden", type=Integer(1), metavar="N", default=64, show_default=True, help="Hidden units of the router.")
@training_options()
@weight_products(fsdp=False)
@annotations
@as_json
@pass_session
def train_soup(
    session: Session,
    /,
    name: str,
    base: str,
    domains: dict[str, list[Path]],
    tags: dict[str, str],
    license_id: str | None,
    alias: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train a soup: shared weights and experts that reg instantiate combines into one model for any mix of domains.

    Shared weights are registered as base model NAME, the experts as NAME-1 to NAME-N. If interrupted, repeat the
    command to resume. A domain cannot be taken out again: all weights are trained on all domains.
    """
    from registry import SoupTraining

    with session.registry(create=True) as registry:
        trained = registry.train_soup(
            name, base, domains, SoupTraining(**settings), tags=tags, license=license_id, alias=alias
        )
    losses, shared, training = trained.losses, trained.shared.version, trained.document["training"]
    if as_json:
        print_json(
            {
                "shared": version_document(shared),
                "experts": [version_document(expert.version) for expert in trained.experts],
                "training": trained.document,
                "loss": [losses.before, losses.after],
                "tokens": trained.tokens,
                "trained_tokens": trained_tokens(training),
            }
        )
        return
    refs = [expert.version.ref for expert in trained.experts]
    listed = refs[0] if len(refs) == 1 else f"{refs[0]} to {refs[-1]}"
    done(
        shared.ref,
        f"trained {name} in {amount(training, settings['tokens'])}; registered {shared.ref}  {short(shared.digest)}",
        f"  experts {listed}; domains {few(training['domains'])}",
        f"  loss on {trained.tokens:,} held-out tokens, each domain's own model: {losses.before:.4f} before, "
        f"{losses.after:.4f} after",
    )
    if losses.after >= losses.before:
        note("  the loss did not improve: train on more data, longer, or with a smaller --lr")
    next_step(["instantiate", name, "--weights", f"{training['domains'][0]}=1", "--out", fresh("model/")])
