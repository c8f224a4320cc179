"""reg ui."""

import importlib.util
from contextlib import suppress

import click

from cli.option_groups import GroupedCommand
from cli.output import as_json, done, print_json
from cli.session import Session, pass_session
from registry.errors import StorageError

_NEEDED = ("starlette", "uvicorn", "jinja2", "vl_convert")
DEFAULT_PORT = 8321


@click.command(cls=GroupedCommand, examples=("reg ui --open", "reg ui --port 0"))
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    default=DEFAULT_PORT,
    show_default=True,
    help="The port; 0 for any free one.",
)
@click.option("--open", "open_browser", is_flag=True, help="Open the pages in the browser.")
@as_json
@pass_session
def ui(session: Session, port: int, open_browser: bool, as_json: bool) -> None:
    """Serve web pages of the registry to browsers on this machine, until interrupted.

    The pages show versions with search and tags, their statistics, overlaps and lineage; compositions with scores and
    reports; and a composer, which plans a composition of chosen experts and shows the command for it. They are
    read-only. Requests from other machines are rejected.
    """
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise StorageError(f"the pages need {', '.join(missing)}", "run: pip install 'expert-registry[ui]'")
    from registry.ui import listen, make_app, server

    command = ["reg"]
    command += ["--home", str(session.home)] if session.home is not None else []
    with listen(port) as listening, session.registry() as registry:
        if session.database is not None:
            command += ["--database", registry.catalog.place]
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        if as_json:
            print_json({"url": url, "home": str(registry.home.path)})
        else:
            done(url, f"serving {registry.home.path} at {url}  (Ctrl-C to stop)")
        if open_browser:
            click.launch(url)
        with suppress(KeyboardInterrupt):
            server(make_app(registry, command)).run(sockets=[listening])
