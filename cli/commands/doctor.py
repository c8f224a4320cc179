"""reg doctor."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.option_groups import GroupedCommand
from cli.output import as_json, is_quiet, next_step, note, on_registry, print_json, progress
from cli.places import composed_place
from cli.score_tables import domain_files
from cli.session import Session, pass_session

if TYPE_CHECKING:
    from registry.doctor import Diagnosis, Finding

_COLOURS = {"error": "red", "warning": "yellow", "ok": "green"}


@click.command(
    cls=GroupedCommand,
    examples=(
        "reg doctor moe/",
        "reg doctor moe/ --data code=code.test.jsonl --data math=math.test.jsonl",
        "reg doctor checkpoints/math --quick",
    ),
)
@click.argument("folder", metavar="FOLDER", type=composed_place)
@click.option(
    "--data",
    multiple=True,
    metavar="DOMAIN=FILE",
    callback=domain_files,
    help="Text to run it on, .txt, .jsonl, .jsonl.gz or .parquet (repeatable). [default: text of the members, kept or "
    "sampled; else a few built-in passages]",
)
@click.option("--quick", is_flag=True, help="Read files and weights, and run nothing.")
@click.option("--every-check", is_flag=True, help="Print a line for each check that was skipped too.")
@click.option("--device", metavar="DEVICE", help="A torch device. [default: the GPU if there is one]")
@as_json
@pass_session
@click.pass_context
def doctor(
    context: click.Context,
    session: Session,
    /,
    folder: Path,
    data: dict[str, list[Path]],
    quick: bool,
    every_check: bool,
    device: str | None,
    as_json: bool,
) -> None:
    """Examine a model FOLDER and say in one sentence whether it is broken, and by what; exit 1 if it is.

    Any folder of safetensors weights is examined, dense or a mixture, composed here or not: files, names and shapes,
    tokens, values, routing, perplexity, and what it writes. No registry is needed; one that is there knows the members
    of a composition. Pickle files are never opened, and no code of others is run.
    """
    from registry.doctor.examined_input import check_examined

    check_examined(folder, data)
    from registry.doctor import diagnose
    from registry.errors import ConflictError, DamagedError, NotFoundError, SchemaError, StorageError

    with ExitStack() as stack:
        try:
            registry = stack.enter_context(session.registry())
        except (NotFoundError, SchemaError, StorageError, DamagedError, ConflictError) as error:
            if any(named is not None for named in (session.home, session.database, session.arrays)):
                note(f"without a registry: {error.message}")
            diagnosis = diagnose(None, folder, data, quick=quick, device=device, progress=progress())
        else:
            diagnosis = registry.doctor(folder, data, quick=quick, device=device)
    if as_json:
        print_json(diagnosis.document())
    else:
        print_diagnosis(diagnosis, every_check=every_check)
    context.exit(0 if diagnosis.is_healthy else 1)


def print_diagnosis(diagnosis: Diagnosis, *, every_check: bool = False) -> None:
    """Print the verdict, with --quiet nothing else; then the findings, errors first, and the next command.

    Args:
        diagnosis: of a folder.
        every_check: print each skipped check with its reason, not one line with the names of all.
    """
    click.echo(click.style(diagnosis.verdict, bold=True))
    if is_quiet():
        return
    before = None
    for finding in diagnosis.sorted_findings if every_check else diagnosis.short_findings:
        more = before is not None and (before.severity, before.check) == (finding.severity, finding.check)
        label = f"{finding.check}: " if finding.check else ""
        head = " " * (8 + len(label)) if more else f"{_severity(finding)} {label}"  # one check, one label
        before = finding
        click.echo(f"  {head}{finding.message}")
        if finding.next and finding.next != diagnosis.next:
            click.echo(f"          {on_registry(finding.next)}")
    if diagnosis.next:
        next_step(on_registry(diagnosis.next))


def _severity(finding: Finding) -> str:
    return click.style(finding.severity.ljust(7), fg=_COLOURS.get(finding.severity))
