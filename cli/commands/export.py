"""reg export."""

from pathlib import Path

import click

from cli.next_steps import evaluating
from cli.option_groups import GroupedCommand
from cli.options import file_path
from cli.output import as_json, done, next_step, print_json
from cli.session import Session, pass_session


@click.command(cls=GroupedCommand, examples=("reg export math --out math/", "reg export math@1 --out math-1/"))
@click.argument("ref", metavar="NAME[@V]")
@click.option("--out", type=file_path, metavar="DIR", required=True, help="The folder to write; absent or empty.")
@as_json
@pass_session
def export(session: Session, ref: str, out: Path, as_json: bool) -> None:
    """Write a registered version as a dense model folder, with bit-identical tensors."""
    with session.registry() as registry:
        version = registry.export(ref, out)
    if as_json:
        print_json({"ref": version.ref, "digest": version.digest, "out": out})
    else:
        done(str(out), f"wrote {version.ref} to {out}")
        next_step(evaluating([out], [version.name] if version.kind == "expert" else []))
