"""reg ui."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from cli.option_groups import command
from cli.options import flag, option
from cli.output import done, printed_json
from cli.session import Session, pass_session
from registry.errors import StorageError
from registry.home import ARRAYS_VARIABLE, DATABASE_VARIABLE

if TYPE_CHECKING:
    from registry import Registry
    from registry.ui import Jobs

_NEEDED = ("starlette", "uvicorn", "jinja2", "vl_convert")
DEFAULT_PORT = 8321


@command("reg ui --open", "reg ui --port 0")
@option("--port N", "The port; 0 for any free one.", default=DEFAULT_PORT, type=click.IntRange(0, 65535))
@flag("--open", "Open the pages in the browser.", "open_browser")
@flag(
    "--write",
    "Compose from the pages too, in the browser that opens the printed address, which holds a secret.",
    "may_write",
)
@pass_session
def ui(session: Session, port: int, open_browser: bool, may_write: bool) -> None:
    """Serve web pages of the registry to browsers on this machine, until interrupted.

    The pages show versions with search and tags, their statistics, overlaps and lineage; compositions with scores and
    reports; and a composer, which plans a composition of chosen experts and shows the command for it. They are
    read-only, unless --write lets the composer run its command. Requests from other machines are rejected.
    """
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise StorageError(f"the pages need {', '.join(missing)}", "run: pip install 'expert-registry[ui]'")
    from registry.io.http_server import listen, server
    from registry.ui import WriteAccess, make_app

    command = ["reg"]
    with ExitStack() as stack:
        listening = stack.enter_context(listen(port))
        registry = stack.enter_context(session.registry())
        if session.home is not None:  # as an absolute path: commands are copied to terminals in other folders
            command += ["--home", str(registry.home.path)]
        if session.database is not None:
            command += ["--database", registry.catalog.place]
        if session.arrays is not None:
            command += ["--arrays", registry.home.arrays_place]
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        access = jobs = None
        if may_write:
            access = WriteAccess(str(registry.home.path))
            jobs = stack.enter_context(_jobs(session, registry))
            url += f"?token={access.token}"
        if not printed_json({"url": url, "home": str(registry.home.path)}):
            done(url, f"serving {registry.home.path} at {url}  (Ctrl-C to stop)")
        if open_browser:
            stack.enter_context(_opened(url, secret=may_write))
        with suppress(KeyboardInterrupt):
            server(make_app(registry, command, access=access, jobs=jobs)).run(sockets=[listening])


def _jobs(session: Session, registry: "Registry") -> "Jobs":
    """Return the queue of work on this registry, by this program whatever the working directory holds."""
    from registry.ui import Jobs

    program = [sys.executable, "-P", "-m", "cli.job", "--home", str(registry.home.path)]
    named = {DATABASE_VARIABLE: session.database}
    if session.arrays is not None:
        named[ARRAYS_VARIABLE] = registry.home.arrays_place
    return Jobs(program, {name: value for name, value in named.items() if value is not None})


@contextmanager
def _opened(url: str, *, secret: bool) -> Iterator[None]:
    """Open the pages in the browser; a secret goes by a file of this user, as others see the words of commands."""
    with TemporaryDirectory(prefix="reg-ui-") as folder:  # which only this user can read
        if secret:
            page = Path(folder) / "open.html"
            page.write_text(f'<meta http-equiv="refresh" content="0; url={url}">', encoding="utf-8")
            url = page.as_uri()
        click.launch(url)
        yield
