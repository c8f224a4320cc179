"""Commands that withdraw experts: opt-out, receipt verify."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.option_groups import CommandGroup, command
from cli.options import composed_path, file, file_path, flag, option
from cli.output import done, is_json, is_quiet, next_step, note, print_json, printed_json, reg_line
from cli.session import Session, pass_session
from registry.errors import InvalidInputError
from registry.io.display import counted, short, size

if TYPE_CHECKING:
    from registry.opt_out.withdraw import OptOut
    from store.catalog import VersionRecord

_OF_VERSION = ("ref", "digest", "withdrawn_at", "purged_at")
_OF_OPT_OUT = ("withdrew", "deleted", "aliases", "compositions", "heirs", "trained_together", "pushes", "purged",
               "deleted_arrays", "deleted_bytes", "shared_arrays", "cleared")  # fmt: skip
"""Attributes that --json prints, in its order."""
_LEAST_SHARE = 0.01  # smallest share of the tokens that is listed


@command("reg opt-out math", "reg opt-out math@1 --purge --yes", "reg opt-out math --purge --receipt math-receipt.json")
@click.argument("ref", metavar="NAME[@V]")
@flag("--purge", "Delete everything except name, digests and times; arrays that another version uses stay.")
@file("--receipt FILE", "Write a receipt to a new file; reg receipt verify checks it.")
@flag("--dry-run", "Print what would be withdrawn, deleted and left, and change nothing.")
@flag("--yes", "Do not ask.")
@pass_session
def opt_out(session: Session, ref: str, purge: bool, receipt: Path | None, dry_run: bool, yes: bool) -> None:
    """Withdraw an expert, or one version of it, from all later compositions.

    Every later composition is identical to that of a registry that never held it. Before it asks, the command lists
    the compositions made from it, their folders and repositories, which contain it until you delete them, and the
    experts that would get its tokens.
    """
    if dry_run and receipt is not None:
        raise click.UsageError("--dry-run writes no receipt: drop one of them.")
    with session.registry() as registry:
        question = _question(registry.affected_by_opt_out(ref), purge)
        if dry_run or (question and not yes and not is_json() and not is_quiet()):
            would = registry.opt_out(ref, purge=purge, dry_run=True)
            if not is_json():
                for line in _consequences(would):
                    click.echo(line, err=not dry_run)
        if question and not (yes or dry_run):
            _confirm(f"{question}?", ref, purge, receipt)
        did = would if dry_run else registry.opt_out(ref, purge=purge, receipt=receipt)
    versions = [{name: getattr(version, name) for name in _OF_VERSION} for version in did.versions]
    document = {"dry_run": dry_run, "versions": versions, **{name: getattr(did, name) for name in _OF_OPT_OUT}}
    remains = [*did.remains, *did.old_versions]
    if not printed_json(document | {"remains": remains, "beyond": did.beyond, "receipt": receipt}) and not dry_run:
        _print(did, receipt)


def _question(versions: "list[VersionRecord]", purge: bool) -> str | None:
    active = ", ".join(version.ref for version in versions if version.state == "active")
    kept = [version.ref for version in versions if version.state != "purged"]
    content = f"the arrays that only {', '.join(kept)} {'uses' if len(kept) == 1 else 'use'}"
    if active:
        return f"Withdraw {active} for good" + (f" and delete {content}" if purge else "")
    return f"Delete {content} for good" if purge and kept else None


def _consequences(would: "OptOut") -> list[str]:
    kept = [version.ref for version in would.versions if version.ref not in would.withdrew]
    lines = [f"would withdraw {', '.join(would.withdrew)}; no other expert changes by a byte"] if would.withdrew else []
    lines += [f"{ref} was opted out already" for ref in kept]
    lines += _aliases(would, "would delete aliases")
    lines += _reach(would)
    if not would.purged:
        return [*lines, "  its weights and statistics stay in the registry: --purge deletes them"] if lines else []
    stay = f"; {would.shared_arrays} that others use stay" if would.shared_arrays else ""
    return [
        *lines,
        f"  would delete {counted(would.deleted_arrays, 'array')} ({size(would.deleted_bytes)}){stay}",
        *(["  would delete the stored scores of these compositions"] if would.compositions else []),
        "  a purge cannot be undone: only its checkpoint brings it back. What remains: folders and repositories,",
        "  receipts, its name, numbers, digests and times in the catalog and the log, recipes, backups and copies",
    ]


def _confirm(question: str, ref: str, purge: bool, receipt: Path | None) -> None:
    options = [*(["--purge"] if purge else []), *(["--receipt", str(receipt)] if receipt else []), "--yes"]
    unanswered = InvalidInputError(
        f"{ref} was not opted out: no terminal to confirm on",
        f"to confirm in advance: {reg_line(['opt-out', ref, *options])}",
    )
    if sys.stdin is None:
        raise unanswered
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)
        raise unanswered from None
    if not agreed:
        raise click.Abort


def _print(did: "OptOut", receipt: Path | None) -> None:
    lines = [f"withdrew {', '.join(did.withdrew)}"] if did.withdrew else []
    for version in did.versions:
        if version.ref not in did.withdrew:
            lines.append(f"{version.ref} was opted out already at {version.withdrawn_at}")
        if did.purged and version.ref not in did.deleted:
            lines.append(f"  it was purged already at {version.purged_at}")
    lines += _aliases(did, "deleted aliases")
    if did.deleted or did.deleted_arrays:
        stay = "stays" if did.shared_arrays == 1 else "stay"
        arrays = f"{counted(did.deleted_arrays, 'array')} ({size(did.deleted_bytes)})"
        lines.append(f"  deleted {arrays}; {did.shared_arrays} {stay}, shared")
    lines += [f"  deleted {path}" for path in did.cleared]
    done(" ".join(did.withdrew or (version.ref for version in did.versions)), *lines)
    for line in did.remains:  # with --quiet too: the request is not complete yet
        click.echo(f"  not deleted yet: {line}", err=is_quiet())
    for line in did.old_versions:
        click.echo(f"  not deleted: {line}", err=is_quiet())
    if did.remains:
        click.echo("  repeat the command when those processes have ended, to delete the rest", err=is_quiet())
    beyond = [f"  not reached: {did.beyond}"] if did.beyond and did.deleted else []
    done(None, *_reach(did), *beyond, *([] if receipt is None else [f"  receipt: {receipt}"]))
    if receipt is not None and not did.remains:
        next_step(["receipt", "verify", str(receipt)])


def _aliases(did: "OptOut", deleted: str) -> list[str]:
    """Return a line on the aliases that a purge deletes, or that stay on versions which are withdrawn."""
    happens = deleted if did.purged else "aliases on what is withdrawn, until reg alias moves them:"
    return [f"  {happens} {', '.join(did.aliases)}"] if did.aliases else []


def _reach(did: "OptOut") -> list[str]:
    """Return lines on the compositions, folders and pushes that contain it, which the registry cannot delete."""
    number = len(did.compositions)
    were = "was" if number == 1 else "were"
    lines = [f"  {counted(number, 'composition')} {were} made from it" + (":" if number else "")]
    heirs = {each.composition: each.shares for each in did.heirs}
    for composition in did.compositions:
        lines.append(f"    {short(composition.digest)}  {','.join(composition.members)}")
        if composition.digest in heirs:
            named = sorted(heirs[composition.digest].items(), key=lambda item: -item[1])
            text = ", ".join(f"{name} {share:.0%}" for name, share in named if share >= _LEAST_SHARE)
            lines.append(
                f"      composed again without it, its tokens would go to {text} (predicted from counts of tokens)"
            )
    if did.compositions:
        lines.append("  written to these folders, which contain it until you delete them:")
    folders = dict.fromkeys(folder for composition in did.compositions for folder in composition.folders)
    lines += [f"    {folder}" for folder in folders]
    if did.trained_together:
        them = ", ".join(did.trained_together)
        lines.append(f"  trained together with {them}, which hold that training: opt them out too, and train again")
    if did.pushes:
        lines.append("  pushed to these repositories, which contain it until you delete them there:")
    for push in did.pushes:
        at = "started, its end was not recorded" if push.commit is None else f"commit {short(push.commit)}"
        lines.append(f"    {push.endpoint}/{push.repo}  {push.revision}  {at}")
    return lines


@click.group(cls=CommandGroup)
def receipt() -> None:
    """Check the receipt of an opt-out, or print it for other programs: reg receipt verify FILE."""


@receipt.command(
    examples=("reg receipt verify math-receipt.json", "reg receipt verify math-receipt.json --folder moe/")
)
@click.argument("file", metavar="FILE", type=file_path)
@option(
    "--folder DIR",
    "A composed folder that must be intact and free of withdrawn versions (repeatable).",
    "folders",
    multiple=True,
    type=composed_path,
)
@pass_session
def verify(session: Session, file: Path, folders: tuple[Path, ...]) -> None:
    """Compare a receipt with the registry; exit 1 if anything differs.

    The versions must still be withdrawn, and purged if the receipt says so; deleted arrays must be absent; the log must
    contain the event that the receipt names; and every recomposition must have the digest in the receipt.
    """
    with session.registry() as registry:
        check = registry.verify_receipt(file, folders)
    checked = check.receipt
    findings = {"problems": check.problems, "remedies": check.remedies, "notes": check.notes}
    if not printed_json({"receipt": checked.document(), **findings}):
        for problem in check.problems:
            click.echo(f"problem: {problem}")
        for line in check.notes:
            done(None, f"note: {line}")
        refs = ", ".join(version.ref for version in checked.versions)
        verdict = counted(len(check.problems), "problem") if check.problems else "receipt confirmed"
        affected = f"{counted(len(checked.compositions), 'composition')} affected"
        done(
            None,
            f"{verdict}: {refs} withdrawn, {counted(len(checked.arrays), 'array')} deleted, {affected}, "
            f"{counted(len(folders), 'folder')} checked",
        )
    if check.problems:
        for remedy in check.remedies:
            note(f"next: {remedy}")
        raise click.exceptions.Exit(1)


@receipt.command(examples=("reg receipt statement math-receipt.json > statement.json",))
@click.argument("file", metavar="FILE", type=file_path)
def statement(file: Path) -> None:
    """Print a receipt as an in-toto Statement, in JSON, with the withdrawn versions as its subjects."""
    from registry.opt_out.receipt import read_receipt

    print_json(read_receipt(file).statement())
