"""reg opt-out."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.options import file_path
from cli.session import Session, as_json, pass_session, print_json, size
from registry.errors import InvalidInputError

if TYPE_CHECKING:
    from registry.withdrawing import OptOut
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
        done = registry.opt_out(ref, purge=purge, receipt=receipt)
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
                    for version in done.versions
                ],
                "withdrew": done.withdrew,
                "deleted": done.deleted,
                "compositions": done.compositions,
                "pushes": done.pushes,
                "purged": done.purged,
                "deleted_arrays": done.deleted_arrays,
                "deleted_bytes": done.deleted_bytes,
                "shared_arrays": done.shared_arrays,
                "cleared": done.cleared,
                "remains": done.remains,
                "receipt": receipt,
            }
        )
        return
    _print(done)
    if receipt is not None:
        click.echo(f"  receipt: {receipt}")


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


def _print(done: "OptOut") -> None:
    if done.withdrew:
        click.echo(f"withdrew {', '.join(done.withdrew)}")
    for version in done.versions:
        if version.ref not in done.withdrew:
            click.echo(f"{version.ref} was opted out already at {version.withdrawn_at}")
        if done.purged and version.ref not in done.deleted:
            click.echo(f"  it was purged already at {version.purged_at}")
    if done.deleted or done.deleted_arrays:
        click.echo(
            f"  deleted {done.deleted_arrays} arrays ({size(done.deleted_bytes)}); {done.shared_arrays} stay, shared"
        )
    for path in done.cleared:
        click.echo(f"  deleted {path}")
    for line in done.remains:
        click.echo(f"  not yet gone: {line}")
    if done.remains:
        click.echo("  when those have ended, repeat the command: what is left of it goes then")
    click.echo(f"  {len(done.compositions)} compositions were made from it" + (":" if done.compositions else ""))
    for composition in done.compositions:
        click.echo(f"    {composition.digest}  {','.join(composition.members)}")
    if done.compositions:
        click.echo("  they were written to these folders, which hold it until you delete them:")
    for folder in dict.fromkeys(folder for composition in done.compositions for folder in composition.folders):
        click.echo(f"    {folder}")
    if done.pushes:
        click.echo("  they were pushed to these repositories, which hold it until you delete them there:")
    for push in done.pushes:
        at = "begun, and not known to have ended" if push.commit is None else f"commit {push.commit[:12]}"
        click.echo(f"    {push.endpoint}/{push.repo}  {push.revision}  {at}")
