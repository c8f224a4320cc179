"""reg config."""

import click

from cli.session import Session, as_json, pass_session, print_json, print_table


@click.command()
@as_json
@pass_session
@click.pass_context
def config(context: click.Context, session: Session, as_json: bool) -> None:
    """Print where everything comes from: home, database, Hub, device, and the versions of what is installed.

    Each with its source: an option, an environment variable, a file, or the default. Of passwords and tokens only
    that there are some. Nothing is created.
    """
    from registry.maintenance.environment import configuration, versions

    above = context.find_root()
    typed = click.core.ParameterSource.COMMANDLINE
    given = frozenset(name for name in ("home", "database") if above.get_parameter_source(name) is typed)
    settings, installed = configuration(session.home, session.database, given=given), versions()
    if as_json:
        shown = {one.name.lower().replace(" ", "_"): {"value": one.value, "source": one.source} for one in settings}
        print_json({"settings": shown, "versions": installed})
        return
    print_table(("setting", "value", "source"), [(one.name, one.value, one.source) for one in settings])
    click.echo()
    print_table(("package", "version"), list(installed.items()))
