"""reg opt-out."""

import click

from cli.session import Session, as_json, pass_session, print_json, size


@click.command()
@click.argument("ref", metavar="NAME[@V]")
@click.option("--purge", is_flag=True, help="Delete its arrays too; those another version needs stay.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@pass_session
def opt_out(session: Session, ref: str, purge: bool, yes: bool, as_json: bool) -> None:
    """Withdraw an expert, or one version of it, from every later composition.

    Every later composition equals that of a registry that never held it. Lists the compositions made from it so far.
    """
    with session.registry() as registry:
        versions = registry.affected_by_opt_out(ref)
        names = ", ".join(version.ref for version in versions)
        if not yes:
            deed = f"Withdraw {names} for good" + (" and delete what only it needs" if purge else "")
            click.confirm(f"{deed}?", abort=True, err=True)
        done = registry.opt_out(ref, purge=purge)
    if as_json:
        print_json(
            {
                "versions": [{"ref": version.ref, "digest": version.digest} for version in done.versions],
                "compositions": done.compositions,
                "purged": done.purged,
                "deleted_arrays": done.deleted_arrays,
                "deleted_bytes": done.deleted_bytes,
                "shared_arrays": done.shared_arrays,
            }
        )
        return
    click.echo(f"withdrew {names}")
    if purge:
        click.echo(
            f"  deleted {done.deleted_arrays} arrays ({size(done.deleted_bytes)}); {done.shared_arrays} stay, shared"
        )
    click.echo(f"  {len(done.compositions)} compositions were made from it" + (":" if done.compositions else ""))
    for composition in done.compositions:
        click.echo(f"    {composition.digest}  {','.join(composition.members)}")
