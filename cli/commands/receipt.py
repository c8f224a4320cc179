"""reg receipt verify."""

from pathlib import Path

import click

from cli.options import file_path
from cli.session import Session, as_json, count, done, note, pass_session, print_json


@click.group()
def receipt() -> None:
    """Receipts that opt-out wrote."""


@receipt.command()
@click.argument("file", metavar="FILE", type=file_path)
@click.option(
    "--folder",
    "folders",
    multiple=True,
    type=file_path,
    metavar="DIR",
    help="A composed folder that must be whole and name nothing that was withdrawn (repeatable).",
)
@as_json
@pass_session
@click.pass_context
def verify(context: click.Context, session: Session, file: Path, folders: tuple[Path, ...], as_json: bool) -> None:
    """Hold a receipt against the registry; exit 1 if anything is not as it says.

    What was withdrawn is, and was purged where the receipt says so; no array that was deleted is there; the log goes on
    from the event that the receipt names; and every recomposition has the digest that it has now.
    """
    with session.registry() as registry:
        check = registry.verify_receipt(file, folders)
    found = check.receipt
    if as_json:
        told = {"problems": check.problems, "remedies": check.remedies, "notes": check.notes}
        print_json({"receipt": found.document(), **told})
    else:
        for problem in check.problems:
            click.echo(f"problem: {problem}")
        for line in check.notes:
            done(None, f"note: {line}")
        refs = ", ".join(version.ref for version in found.versions)
        verdict = count(len(check.problems), "problem") if check.problems else "holds"
        affected = f"{count(len(found.compositions), 'composition')} affected"
        done(
            None,
            f"{verdict}: {refs} withdrawn, {count(len(found.arrays), 'array')} deleted, {affected}, "
            f"{count(len(folders), 'folder')} checked",
        )
    if check.problems:
        for remedy in check.remedies:
            note(f"next: {remedy}")
        context.exit(1)
