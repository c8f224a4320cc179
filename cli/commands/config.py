"""reg config."""

import click

from cli.option_groups import GroupedCommand
from cli.output import as_json, print_json, print_table
from cli.session import Session, pass_session


@click.command(cls=GroupedCommand, examples=("reg config", "reg --home team/registry config"))
@as_json
@pass_session
def config(session: Session, as_json: bool) -> None:
    """Print all settings (home, database, arrays, Hub, device) with their sources, and the versions of packages.

    A source is an option, an environment variable, a file or the default. Passwords and tokens are not shown, only that
    they are set. Nothing is created.
    """
    from registry.maintenance.environment import configuration, versions

    settings, installed = configuration(session.home, session.database, session.arrays, given=session.typed), versions()
    if as_json:
        shown = {each.name.lower().replace(" ", "_"): {"value": each.value, "source": each.source} for each in settings}
        print_json({"settings": shown, "versions": installed})
        return
    print_table(("setting", "value", "source"), [(each.name, each.value, each.source) for each in settings])
    click.echo()
    print_table(("package", "version"), list(installed.items()))
