"""reg reproduce."""

from pathlib import Path

import click

from cli.next_steps import evaluating
from cli.option_groups import GroupedCommand
from cli.options import file_path
from cli.output import as_json, done, next_step, note, print_json, short, size
from cli.places import composed_place
from cli.session import Session, pass_session


@click.command(cls=GroupedCommand, examples=("reg reproduce moe/", "reg reproduce moe/ --out again/"))
@click.argument("folder", metavar="FOLDER", type=composed_place)
@click.option("--out", type=file_path, metavar="DIR", help="Keep the new composition in this folder; absent or empty.")
@as_json
@pass_session
@click.pass_context
def reproduce(context: click.Context, session: Session, folder: Path, out: Path | None, as_json: bool) -> None:
    """Compose FOLDER again from its own composition.json and compare every byte; exit 1 if one differs.

    Its members must be registered here, by name and content digest, and not opted out.
    """
    with session.registry() as registry:
        result = registry.reproduce(folder, out)
    refs = [version.ref for version in result.versions]
    if as_json:
        print_json(
            {
                "folder": result.folder,
                "digest": result.digest,
                "versions": refs,
                "same": result.is_same,
                "files": result.files,
                "bytes": result.nbytes,
                "out": result.out,
            }
        )
    else:
        for file in result.differing:
            click.echo(f"{file.state}: {file.name}" + ("" if file.at is None else f", from byte {file.at:,} on"))
        for file in result.files:
            if file.state == "pushed":
                done(None, f"note: {file.name} is the same except for the additions of reg push")
        number, wrong = len(result.files), len(result.differing)
        files = "file" if number == 1 else "files"
        verdict = (
            f"not reproduced: {wrong} of {number} {files} differ from"
            if wrong
            else f"reproduced: {number} {files} equal"
        )
        done(None, f"{verdict} the composition of {', '.join(refs)} ({size(result.nbytes)})  {short(result.digest)}")
    if not result.is_same:
        note(
            f"next: reg reproduce {folder} --out DIR keeps the new composition; "
            f"if {folder} was changed or copied in part, copy it again"
        )
        context.exit(1)
    next_step(evaluating([folder], [version.name for version in result.versions]))
