"""Commands that serve other programs: serve, gateway."""

import importlib.util
import logging
from asyncio import CancelledError
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.option_groups import command
from cli.options import composed_path, file, option
from cli.output import Decorator, done, note, printed_json
from cli.session import Session, pass_session
from cli.version_output import warn_of_folder
from registry.errors import InvalidInputError, StorageError
from registry.io.http_server import ADDRESS, listen, server
from registry.io.limits import SIGNER_BYTES
from registry.io.untrusted import read_small
from registry.runtime.folder_checks import check_routed

if TYPE_CHECKING:
    from starlette.applications import Starlette

HUB_PORT, GATEWAY_PORT = 8322, 8323


def _port(default: int) -> Decorator:
    return option("--port N", "The port; 0 for any free one.", default=default, type=click.IntRange(0, 65535))


@command(
    "reg serve",
    "reg serve mix/code-math --recipe docs/recipes/adapters.yaml",
    "reg serve --host 0.0.0.0 --tokens tokens.txt",
)
@click.argument("repositories", metavar="[REPOSITORY]...", nargs=-1)
@_port(HUB_PORT)
@option("--host ADDRESS", "The address to listen at; one of a network needs --tokens.", default=ADDRESS)
@file("--tokens FILE", "Answer only requests with one of these tokens, a line each.")
@file("--recipe FILE", "How mixes are composed: a recipe file; by default as reg compose does.")
@pass_session
def serve(
    session: Session,
    repositories: tuple[str, ...],
    port: int,
    host: str,
    tokens: Path | None,
    recipe: Path | None,
) -> None:
    """Serve the registry as a Hub, until interrupted: transformers reads it with HF_ENDPOINT=http://127.0.0.1:8322.

    Repositories are experts/NAME and bases/NAME, whose revisions are versions and aliases; adapters/NAME, as PEFT reads
    it; and mix/A-B, the composition of A and B. Each is written to disk when it is first asked for, and kept until the
    server ends; those named as REPOSITORY are written before it begins. What is opted out is gone at once.
    """
    _require("starlette", "uvicorn")
    known = _tokens(tokens)
    if host not in (ADDRESS, "localhost") and not known:
        raise InvalidInputError(f"{host} can be reached from elsewhere, and no token is asked for", "add --tokens FILE")
    from registry import Recipe
    from registry.composition import read_recipe
    from registry.io.work_dirs import temporary_folder
    from registry.serving import Repositories, hub_app

    given = read_recipe(recipe) if recipe else None
    mixed = given.recipe if given else Recipe()
    if given and (given.experts or given.members):
        note(f"the experts in {recipe} are not used: the name of a mix has its own")
    with ExitStack() as stack:
        listening = stack.enter_context(listen(port, host))
        registry = stack.enter_context(session.registry())
        folder = stack.enter_context(temporary_folder(registry.home.work))
        served = Repositories(registry, folder, mixed)
        for name in repositories:
            note(f"{name} is written: commit {served.find(name).commit}")
        url = f"http://{host}:{listening.getsockname()[1]}"
        if not printed_json({"url": url, "home": str(registry.home.path)}):
            done(url, f"serving {registry.home.path} as a Hub: HF_ENDPOINT={url}  (Ctrl-C to stop)")
        _run(hub_app(served, known), listening)


@command("reg gateway both/ --server http://127.0.0.1:8000", "reg gateway both/ --server URL --name law=law-lora")
@click.argument("folder", metavar="FOLDER", type=composed_path)
@option("--server URL", "A server of adapters with OpenAI's API: vLLM, LoRAX, llama.cpp.", "url", required=True)
@option("--name EXPERT=NAME", "An expert's name at the server, if it is another (repeatable).", "names", multiple=True)
@_port(GATEWAY_PORT)
@pass_session
def gateway(session: Session, folder: Path, url: str, names: tuple[str, ...], port: int) -> None:
    """Forward each prompt to a server of adapters, under the name of its expert, until interrupted.

    FOLDER, of reg compose --to adapters, tells by a prompt's tokens which expert it is for, as reg route --pick does; a
    request whose model is an expert's name keeps it. Answers are streamed, and their header X-Reg-Expert has the name.
    """
    _require("starlette", "uvicorn")
    check_routed(folder)  # before torch is loaded
    warn_of_folder(session, folder)
    from registry.serving import Gateway

    app = Gateway(folder, url, dict(map(_pair, names)))
    with listen(port) as listening:
        own = f"http://{ADDRESS}:{listening.getsockname()[1]}"
        if not printed_json({"url": own, "server": url, "experts": app.names}):
            done(own, f"routing prompts at {own}/v1 to {url}: {', '.join(app.names)}  (Ctrl-C to stop)")
        _run(app.app(), listening)


def _run(app: "Starlette", listening: Any) -> None:
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
    with suppress(KeyboardInterrupt):
        server(app).run(sockets=[listening])


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Tell whether a line of the server's log is not of requests that its end breaks off."""
    kind = record.exc_info[0] if record.exc_info else None
    return not record.getMessage().startswith("Cancel ") and not (kind and issubclass(kind, CancelledError))


def _require(*names: str) -> None:
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        raise StorageError(f"a server needs {', '.join(missing)}", "run: pip install 'expert-registry[ui]'")


def _tokens(path: Path | None) -> Sequence[str]:
    """Return the tokens of a file (InvalidInputError: it has none)."""
    if path is None:
        return ()
    if not path.is_file():
        raise InvalidInputError(f"{path} is not a file", "write tokens, a line each: openssl rand -hex 24")
    found = [line.strip() for line in read_small(path, SIGNER_BYTES).decode(errors="replace").splitlines()]
    if not (found := [token for token in found if token]):
        raise InvalidInputError(f"{path} has no token", "write tokens, a line each: openssl rand -hex 24")
    return found


def _pair(text: str) -> tuple[str, str]:
    expert, equals, name = text.partition("=")
    if not (expert and equals and name):
        raise click.UsageError(f"--name takes EXPERT=NAME, such as law=law-lora, not {text!r}.")
    return expert, name
