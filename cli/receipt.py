"""reg receipt verify."""

from pathlib import Path

import click

from cli.options import file_path
from cli.session import Session, as_json, pass_session, print_json


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
        print_json({"receipt": found.document(), "problems": check.problems, "notes": check.notes})
    else:
        for problem in check.problems:
            click.echo(f"problem: {problem}")
        for note in check.notes:
            click.echo(f"note: {note}")
        refs = ", ".join(version.ref for version in found.versions)
        verdict = f"{len(check.problems)} problems" if check.problems else "holds"
        click.echo(
            f"{verdict}: {refs} withdrawn, {len(found.arrays)} arrays deleted, {len(found.compositions)} compositions "
            f"affected, {len(folders)} folders checked"
        )
    if check.problems:
        context.exit(1)
