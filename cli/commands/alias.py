"""reg alias."""

import click

from cli.option_groups import GroupedCommand
from cli.output import as_json, done, next_step, print_json
from cli.session import Session, pass_session
from registry.names.reference import Reference


@click.command(cls=GroupedCommand, examples=("reg alias math@1 stable", "reg alias math stable --delete"))
@click.argument("ref", metavar="NAME[@V]")
@click.argument("alias")
@click.option("--delete", is_flag=True, help="Delete NAME@ALIAS instead.")
@as_json
@pass_session
def alias(session: Session, ref: str, alias: str, delete: bool, as_json: bool) -> None:
    """Point ALIAS at a version, so that NAME@ALIAS refers to it; an alias can be moved."""
    name = Reference.parse(ref).name
    with session.registry() as registry:
        if delete:
            registry.remove_alias(name, alias)
            now = before = None
        else:
            before = registry.alias(ref, alias)
            now = registry.resolve(f"{name}@{alias}").ref
    if as_json:
        print_json({"alias": f"{name}@{alias}", "version": now, "before": before})
    elif now is None:
        done(None, f"deleted {name}@{alias}")
        next_step(["show", name])
    else:
        done(now, f"{name}@{alias} is {now}" + (f" (was {before})" if before not in (None, now) else ""))
        next_step(["show", f"{name}@{alias}"])
