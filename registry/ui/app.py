"""The application, the routes to all pages, and its HTTP server on this machine's loopback address."""

import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from registry.errors import StorageError
from registry.registry import Registry
from registry.ui.comparison import side_by_side
from registry.ui.composer.compose_page import composer, preview
from registry.ui.composition_list import compositions
from registry.ui.compositions import composition, report
from registry.ui.guard import Guard, WriteAccess
from registry.ui.job_pages import FORMS, JOB_PAGES, form_endpoint
from registry.ui.jobs import Jobs
from registry.ui.overview import log, overview
from registry.ui.site import Page, Site
from registry.ui.versions import comparison, opting_out, version

if TYPE_CHECKING:
    import uvicorn

ADDRESS = "127.0.0.1"
SHUTDOWN_SECONDS = 1  # seconds that running requests may take after the server is asked to stop

PAGES: dict[str, Page] = {
    "/": overview,
    "/versions/{ref}": version,
    "/versions/{ref}/comparison": comparison,
    "/versions/{ref}/opt-out": opting_out,
    "/compositions": compositions,
    "/compositions/compare": side_by_side,
    "/compositions/{digest}": composition,
    "/compositions/{digest}/report": report,
    "/compose": composer,
    "/compose/preview": preview,
    "/log": log,
}
"""Path → page. All pages are read with GET and change nothing."""


def make_app(
    registry: Registry,
    command: Sequence[str] = ("reg",),
    *,
    access: WriteAccess | None = None,
    jobs: Jobs | None = None,
) -> Starlette:
    """Return the application for `registry`, which the pages only read.

    `command` begins the commands that pages show. `access` says which browsers may start work, which `jobs` runs.
    """
    site = Site(registry, command, access, jobs)
    routes = [Route(path, site.page(make)) for path, make in PAGES.items()]
    if access is not None and jobs is not None:
        routes += [Route(path, site.page(make)) for path, make in JOB_PAGES.items()]
        routes += [Route(path, form_endpoint(site, take), methods=["POST"]) for path, take in FORMS.items()]

    def failed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            return site.error(request, 404, "this page does not exist", "the links above lead to all pages")
        return site.error(request, error.status_code, error.detail, None)

    static = StaticFiles(directory=Path(__file__).with_name("static"), packages=[("registry.design", "static")])
    return Starlette(
        routes=[*routes, Mount("/static", static)],
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={HTTPException: failed},
    )


def listen(port: int) -> socket.socket:
    """Return a socket on this machine's loopback address; port 0 is any free one (StorageError: it cannot be used)."""
    try:
        return socket.create_server((ADDRESS, port), backlog=64)
    except OSError as error:
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used: {os.strerror(error.errno or 0)}"
        raise StorageError(f"port {port} {why}", "choose another one, or any free one: reg ui --port 0") from error


def server(app: ASGIApp) -> "uvicorn.Server":
    """Return the server of `app`; run it with `server(app).run(sockets=[listen(port)])`."""
    import uvicorn

    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return uvicorn.Server(config)
