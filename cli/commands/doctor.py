"""Commands that examine model folders: doctor, reproduce, audit-extraction."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.next_steps import evaluating
from cli.option_groups import AUDIT, command
from cli.options import composed_path, device, file, files, flag, integer, lists, number, option
from cli.output import done, is_quiet, next_step, note, on_registry, print_table, printed_json, progress
from cli.session import Session, pass_session
from cli.version_output import warn_of_opted_out
from registry.io.display import short, size

if TYPE_CHECKING:
    from registry.doctor import Diagnosis

_COLOURS = {"error": "red", "warning": "yellow", "ok": "green"}


@command(
    "reg doctor moe/",
    "reg doctor moe/ --data code=code.test.jsonl --data math=math.test.jsonl",
    "reg doctor checkpoints/math --quick",
)
@click.argument("folder", metavar="FOLDER", type=composed_path)
@option(
    "--data DOMAIN=FILE",
    "Text to run it on, .txt, .jsonl, .jsonl.gz or .parquet (repeatable). [default: text of the members, kept or "
    "sampled; else a few built-in passages]",
    multiple=True,
    callback=lists("DOMAIN=FILE", Path),
)
@flag("--quick", "Read files and weights, and run nothing.")
@flag("--every-check", "Print a line for each check that was skipped too.")
@device
@pass_session
def doctor(session: Session, /, folder: Path, data: dict[str, list[Path]], every_check: bool, **settings: Any) -> None:
    """Examine a model FOLDER and say in one sentence whether it is broken, and by what; exit 1 if it is.

    Any folder of safetensors weights is examined, dense or a mixture, composed here or not: files, names and shapes,
    tokens, values, routing, perplexity, and what it writes. No registry is needed; one that is there knows the members
    of a composition. Pickle files are never opened, and no code of others is run.
    """
    from registry.evaluation.model_folders import check_examined

    check_examined(folder, data)
    from registry.doctor import diagnose
    from registry.errors import ConflictError, DamagedError, NotFoundError, SchemaError, StorageError

    with ExitStack() as stack:
        try:
            registry = stack.enter_context(session.registry())
        except (NotFoundError, SchemaError, StorageError, DamagedError, ConflictError) as error:
            if any(named is not None for named in (session.home, session.database, session.arrays)):
                note(f"without a registry: {error.message}")
            diagnosis = diagnose(None, folder, data, progress=progress(), **settings)
        else:
            diagnosis = registry.doctor(folder, data, **settings)
    if not printed_json(diagnosis.document()):
        print_diagnosis(diagnosis, every_check=every_check)
    if not diagnosis.is_healthy:
        raise click.exceptions.Exit(1)


def print_diagnosis(diagnosis: "Diagnosis", *, every_check: bool = False) -> None:
    """Print the verdict and, unless --quiet, findings (with `every_check` each skipped check) and the next command."""
    click.echo(click.style(diagnosis.verdict, bold=True))
    if is_quiet():
        return
    before = None
    for finding in diagnosis.sorted_findings if every_check else diagnosis.short_findings:
        more = before is not None and (before.severity, before.check) == (finding.severity, finding.check)
        label = f"{finding.check}: " if finding.check else ""
        severity = click.style(finding.severity.ljust(7), fg=_COLOURS.get(finding.severity))
        head = " " * (8 + len(label)) if more else f"{severity} {label}"  # one check, one label
        before = finding
        click.echo(f"  {head}{finding.message}")
        if finding.next and finding.next != diagnosis.next:
            click.echo(f"          {on_registry(finding.next)}")
    if diagnosis.next:
        next_step(on_registry(diagnosis.next))


@command("reg reproduce moe/", "reg reproduce moe/ --out again/")
@click.argument("folder", metavar="FOLDER", type=composed_path)
@file("--out DIR", "Keep the new composition in this folder; absent or empty.")
@pass_session
def reproduce(session: Session, folder: Path, out: Path | None) -> None:
    """Compose FOLDER again from its own composition.json and compare every byte; exit 1 if one differs.

    Its members must be registered here, by name and content digest, and not opted out.
    """
    with session.registry() as registry:
        result = registry.reproduce(folder, out)
    refs = [version.ref for version in result.versions]
    document = {"folder": result.folder, "digest": result.digest, "versions": refs, "same": result.is_same}
    if not printed_json(document | {"files": result.files, "bytes": result.nbytes, "out": result.out}):
        for file in result.differing:
            click.echo(f"{file.state}: {file.name}" + ("" if file.at is None else f", from byte {file.at:,} on"))
        for file in result.files:
            if file.state == "pushed":
                done(None, f"note: {file.name} is the same except for the additions of reg push")
        number, wrong = len(result.files), len(result.differing)
        files = f"{number} {'file' if number == 1 else 'files'}"
        verdict = f"not reproduced: {wrong} of {files} differ from" if wrong else f"reproduced: {files} equal"
        done(None, f"{verdict} the composition of {', '.join(refs)} ({size(result.nbytes)})  {short(result.digest)}")
    if not result.is_same:
        note(
            f"next: reg reproduce {folder} --out DIR keeps the new composition; "
            f"if {folder} was changed or copied in part, copy it again"
        )
        raise click.exceptions.Exit(1)
    next_step(evaluating([folder], [version.name for version in result.versions if version.kind == "expert"]))


@command("reg audit-extraction checkpoints/base moe/ --data law.jsonl", headings=AUDIT)
@click.argument("folders", metavar="FOLDER…", type=composed_path, nargs=-1, required=True)
@files(
    "--data",
    "Text to look for, such as an expert's training text: .txt, .jsonl, .jsonl.gz, .parquet (repeatable).",
    required=True,
)
@integer("--documents", "Documents to try.", 100)
@integer("--prefix", "Tokens that the model is given.", 32)
@integer("--continued", "Tokens that it continues by.", 256)
@integer("--top-k", "Sample among so many tokens.", 50)
@number("--top-p", "Sample among the fewest tokens of so much probability together.", 1.0)
@integer("--samples", "Continuations of a document.", 10)
@number("--threshold", "Least similarity of an extracted document.", 0.9)
@integer("--seed", "Seed of documents and samples.", 0, least=0)
@device
@pass_session
def audit_extraction(session: Session, /, folders: tuple[Path, ...], data: tuple[Path, ...], **settings: Any) -> None:
    """Print the share of documents that models continue nearly word for word from their first tokens.

    Each FOLDER is a model: a base model, a composition, an expert. A document is extracted if the best of its samples
    has a normalised Levenshtein similarity of at least --threshold, on tokens (FlexOlmo §5.3). No text is printed.
    Figures of a composition made here are stored with it: reg show DIGEST.
    """
    from registry import ExtractionSettings

    with session.registry(create=True) as registry:
        warn_of_opted_out(registry, folders)
        found = registry.audit_extraction(folders, data, ExtractionSettings(**settings))
    if printed_json([one.document() for one in found]):
        return
    rows = [
        (one.label, f"{one.extracted} of {len(one.similarity)}", f"{one.rate:.1%}", f"{one.mean:.3f}",
         f"{max(one.similarity):.3f}")
        for one in found
    ]  # fmt: skip
    print_table(("model", "extracted", "rate", "mean similarity", "largest"), rows)
