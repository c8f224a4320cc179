"""reg receipt verify."""

from pathlib import Path

import click

from cli.option_groups import CommandGroup, GroupedCommand
from cli.options import file_path
from cli.output import as_json, count, done, note, print_json
from cli.places import composed_place
from cli.session import Session, pass_session


@click.group(cls=CommandGroup)
def receipt() -> None:
    """Check the receipt of an opt-out: reg receipt verify FILE."""


@receipt.command(
    cls=GroupedCommand,
    examples=("reg receipt verify math-receipt.json", "reg receipt verify math-receipt.json --folder moe/"),
)
@click.argument("file", metavar="FILE", type=file_path)
@click.option(
    "--folder",
    "folders",
    multiple=True,
    type=composed_place,
    metavar="DIR",
    help="A composed folder that must be intact and free of withdrawn versions (repeatable).",
)
@as_json
@pass_session
@click.pass_context
def verify(context: click.Context, session: Session, file: Path, folders: tuple[Path, ...], as_json: bool) -> None:
    """Compare a receipt with the registry; exit 1 if anything differs.

    The versions must still be withdrawn, and purged if the receipt says so; deleted arrays must be absent; the log must
    contain the event that the receipt names; and every recomposition must have the digest in the receipt.
    """
    with session.registry() as registry:
        check = registry.verify_receipt(file, folders)
    checked = check.receipt
    if as_json:
        findings = {"problems": check.problems, "remedies": check.remedies, "notes": check.notes}
        print_json({"receipt": checked.document(), **findings})
    else:
        for problem in check.problems:
            click.echo(f"problem: {problem}")
        for line in check.notes:
            done(None, f"note: {line}")
        refs = ", ".join(version.ref for version in checked.versions)
        verdict = count(len(check.problems), "problem") if check.problems else "receipt confirmed"
        affected = f"{count(len(checked.compositions), 'composition')} affected"
        done(
            None,
            f"{verdict}: {refs} withdrawn, {count(len(checked.arrays), 'array')} deleted, {affected}, "
            f"{count(len(folders), 'folder')} checked",
        )
    if check.problems:
        for remedy in check.remedies:
            note(f"next: {remedy}")
        context.exit(1)
