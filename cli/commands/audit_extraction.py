"""reg audit-extraction."""

from pathlib import Path
from typing import Any

import click

from cli.opted_out import warn_of_opted_out
from cli.option_groups import AUDIT, GroupedCommand
from cli.options import Integer, file_path
from cli.output import as_json, print_json, print_table
from cli.places import composed_place
from cli.session import Session, pass_session


@click.command(
    cls=GroupedCommand,
    headings=AUDIT,
    examples=("reg audit-extraction checkpoints/base moe/ --data law.jsonl",),
)
@click.argument("folders", metavar="FOLDER…", type=composed_place, nargs=-1, required=True)
@click.option(
    "--data",
    multiple=True,
    required=True,
    type=file_path,
    metavar="FILE",
    help="Text to look for, such as an expert's training text: .txt, .jsonl, .jsonl.gz, .parquet (repeatable).",
)
@click.option("--documents", type=Integer(1), metavar="N", default=100, show_default=True, help="Documents to try.")
@click.option(
    "--prefix", type=Integer(1), metavar="N", default=32, show_default=True, help="Tokens that the model is given."
)
@click.option(
    "--continued", type=Integer(1), metavar="N", default=256, show_default=True, help="Tokens that it continues by."
)
@click.option(
    "--top-k", type=Integer(1), metavar="N", default=50, show_default=True, help="Sample among so many tokens."
)
@click.option(
    "--samples", type=Integer(1), metavar="N", default=10, show_default=True, help="Continuations of a document."
)
@click.option(
    "--threshold",
    type=float,
    metavar="X",
    default=0.9,
    show_default=True,
    help="Least similarity of an extracted document.",
)
@click.option(
    "--seed", type=Integer(0), metavar="N", default=0, show_default=True, help="Seed of documents and samples."
)
@click.option("--device", metavar="DEVICE", help="A torch device. [default: the GPU if there is one]")
@as_json
@pass_session
def audit_extraction(
    session: Session, /, folders: tuple[Path, ...], data: tuple[Path, ...], as_json: bool, **settings: Any
) -> None:
    """Print the share of documents that models continue nearly word for word from their first tokens.

    Each FOLDER is a model: a base model, a composition, an expert. A document is extracted if the best of its samples
    has a normalised Levenshtein similarity of at least --threshold, on tokens (FlexOlmo §5.3). No text is printed.
    Figures of a composition made here are stored with it: reg show DIGEST.
    """
    from registry import ExtractionSettings

    with session.registry(create=True) as registry:
        warn_of_opted_out(registry, folders)
        found = registry.audit_extraction(folders, data, ExtractionSettings(**settings))
    if as_json:
        print_json([one.document() for one in found])
        return
    rows = [
        (one.label, f"{one.extracted} of {len(one.similarity)}", f"{one.rate:.1%}", f"{one.mean:.3f}",
         f"{max(one.similarity):.3f}")
        for one in found
    ]  # fmt: skip
    print_table(("model", "extracted", "rate", "mean similarity", "largest"), rows)
