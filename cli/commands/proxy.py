"""reg proxy."""

from pathlib import Path

import click

from cli.option_groups import GroupedCommand
from cli.options import Integer, file_path, split
from cli.output import as_json, done, next_step, print_json, print_table
from cli.session import Session, pass_session
from registry.destination.fresh import fresh

_SCORE = (
    "score of a document: the discriminant of the expert's text against the public text, mean over layers; the larger,",
    "the nearer to the expert, and below 0 nearer to the public text; to compare within one expert",
)


@click.command(cls=GroupedCommand, examples=("reg proxy public.jsonl --experts law,math --base base --out proxy/",))
@click.argument("files", metavar="FILE…", type=file_path, nargs=-1, required=True)
@click.option("--experts", multiple=True, required=True, metavar="A,B@2,…", help="The experts, in any order.")
@click.option("--base", metavar="NAME[@V]", help="The base model. [default: the only one registered]")
@click.option("--out", required=True, type=file_path, metavar="DIR", help="The folder to write; it appears whole.")
@click.option(
    "--documents", type=Integer(1), metavar="N", default=500, show_default=True, help="Documents for each expert."
)
@click.option("--device", metavar="DEVICE", help="A torch device. [default: the GPU if there is one]")
@as_json
@pass_session
def proxy(
    session: Session,
    /,
    files: tuple[Path, ...],
    experts: tuple[str, ...],
    base: str | None,
    out: Path,
    documents: int,
    device: str | None,
    as_json: bool,
) -> None:
    """Choose from public text the documents nearest to each expert, to train routers on.

    FILE is .txt, .jsonl, .jsonl.gz or .parquet. The experts' statistics are compared with public text's: no text of
    theirs is needed. Each expert gets a file DIR/NAME.jsonl, for reg train-router --data. A score is the value of a
    linear discriminant: the larger, the nearer to the expert; below 0, nearer to the public text.
    """
    with session.registry() as registry:
        chosen = registry.proxy(split(experts), files, out, base=base, documents=documents, device=device)
    if as_json:
        print_json([vars(one) for one in chosen])
        return
    rows = [
        (one.name, f"{one.documents:,} of {one.candidates:,}", f"{one.best:.3g}", f"{one.least:.3g}") for one in chosen
    ]
    print_table(("expert", "documents", "best score", "least score"), rows)
    done(str(out), *_SCORE, f"written to {out}")
    data = [word for one in chosen for word in ("--data", str(one.path))]
    next_step(["train-router", "FOLDER", *data, "--out", fresh("trained/")])
