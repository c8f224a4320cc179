"""reg opt-out."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.options import file_path
from cli.session import Session, as_json, count, done, is_quiet, pass_session, print_json, size
from registry.errors import InvalidInputError

if TYPE_CHECKING:
    from registry.opt_out.withdraw import OptOut
    from store.catalog import VersionRecord


@click.command()
@click.argument("ref", metavar="NAME[@V]")
@click.option(
    "--purge", is_flag=True, help="Delete all of it but name, digests and times; arrays another version needs stay."
)
@click.option(
    "--receipt", type=file_path, metavar="FILE", help="Write a receipt, which reg receipt verify checks; a new file."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@pass_session
def opt_out(session: Session, ref: str, purge: bool, receipt: Path | None, yes: bool, as_json: bool) -> None:
    """Withdraw an expert, or one version of it, from every later composition.

    Every later composition equals that of a registry that never held it. Lists the compositions made from it so far,
    and the folders they were written to: those hold it until you delete them.
    """
    with session.registry() as registry:
        deed = _deed(registry.affected_by_opt_out(ref), purge)
        if deed and not yes:
            _confirm(f"{deed}?", ref, purge, receipt)
        did = registry.opt_out(ref, purge=purge, receipt=receipt)
    if as_json:
        print_json(
            {
                "versions": [
                    {
                        "ref": version.ref,
                        "digest": version.digest,
                        "withdrawn_at": version.withdrawn_at,
                        "purged_at": version.purged_at,
                    }
                    for version in did.versions
                ],
                "withdrew": did.withdrew,
                "deleted": did.deleted,
                "compositions": did.compositions,
                "pushes": did.pushes,
                "purged": did.purged,
                "deleted_arrays": did.deleted_arrays,
                "deleted_bytes": did.deleted_bytes,
                "shared_arrays": did.shared_arrays,
                "cleared": did.cleared,
                "remains": did.remains,
                "receipt": receipt,
            }
        )
        return
    _print(did, receipt)


def _deed(versions: "list[VersionRecord]", purge: bool) -> str | None:
    """Return what is to be confirmed, or None where nothing is left to do."""
    active = ", ".join(version.ref for version in versions if version.state == "active")
    kept = [version.ref for version in versions if version.state != "purged"]
    belongings = f"what only {', '.join(kept)} {'needs' if len(kept) == 1 else 'need'}"
    if active:
        return f"Withdraw {active} for good" + (f" and delete {belongings}" if purge else "")
    return f"Delete {belongings} for good" if purge and kept else None


def _confirm(question: str, ref: str, purge: bool, receipt: Path | None) -> None:
    options = (" --purge" if purge else "") + (f" --receipt {shlex.quote(str(receipt))}" if receipt else "")
    nobody = InvalidInputError(
        f"{ref} was not opted out: there is nobody to answer the question",
        f"to answer it beforehand: reg opt-out {shlex.quote(ref)}{options} --yes",
    )
    if sys.stdin is None:
        raise nobody
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)
        raise nobody from None
    if not agreed:
        raise click.Abort


def _print(did: "OptOut", receipt: Path | None) -> None:
    lines = [f"withdrew {', '.join(did.withdrew)}"] if did.withdrew else []
    for version in did.versions:
        if version.ref not in did.withdrew:
            lines.append(f"{version.ref} was opted out already at {version.withdrawn_at}")
        if did.purged and version.ref not in did.deleted:
            lines.append(f"  it was purged already at {version.purged_at}")
    if did.deleted or did.deleted_arrays:
        stay = "stays" if did.shared_arrays == 1 else "stay"
        arrays = f"{count(did.deleted_arrays, 'array')} ({size(did.deleted_bytes)})"
        lines.append(f"  deleted {arrays}; {did.shared_arrays} {stay}, shared")
    lines += [f"  deleted {path}" for path in did.cleared]
    done(" ".join(did.withdrew or (version.ref for version in did.versions)), *lines)
    for line in did.remains:  # with --quiet too: what was asked for is not done yet
        click.echo(f"  not yet gone: {line}", err=is_quiet())
    if did.remains:
        click.echo("  when those have ended, repeat the command: what is left of it goes then", err=is_quiet())
    done(None, *_reach(did), *([] if receipt is None else [f"  receipt: {receipt}"]))


def _reach(did: "OptOut") -> list[str]:
    """Return what was made of it, and where that is: the registry cannot delete it there."""
    number = len(did.compositions)
    were = "was" if number == 1 else "were"
    lines = [f"  {count(number, 'composition')} {were} made from it" + (":" if number else "")]
    lines += [f"    {composition.digest}  {','.join(composition.members)}" for composition in did.compositions]
    if did.compositions:
        lines.append("  written to these folders, which hold it until you delete them:")
    folders = dict.fromkeys(folder for composition in did.compositions for folder in composition.folders)
    lines += [f"    {folder}" for folder in folders]
    if did.pushes:
        lines.append("  pushed to these repositories, which hold it until you delete them there:")
    for push in did.pushes:
        at = "begun, and not known to have ended" if push.commit is None else f"commit {push.commit[:12]}"
        lines.append(f"    {push.endpoint}/{push.repo}  {push.revision}  {at}")
    return lines
