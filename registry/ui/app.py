"""The application: the routes to all pages."""

from collections.abc import Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from registry.registry import Registry
from registry.ui.composer import composer, preview
from registry.ui.compositions import composition, compositions, report
from registry.ui.guard import Guard
from registry.ui.log import log
from registry.ui.site import Page, Site
from registry.ui.versions import comparison, version, versions

PAGES: dict[str, Page] = {
    "/": versions,
    "/versions/{ref}": version,
    "/versions/{ref}/comparison": comparison,
    "/compositions": compositions,
    "/compositions/{digest}": composition,
    "/compositions/{digest}/report": report,
    "/compose": composer,
    "/compose/preview": preview,
    "/log": log,
}
"""Path → page. All pages are read with GET and change nothing."""


def make_app(registry: Registry, command: Sequence[str] = ("reg",)) -> Starlette:
    """Return the application for `registry`; commands on the pages begin with `command`, such as `reg --home DIR`."""
    site = Site(registry, command)

    def failed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            return site.error(request, 404, "this page does not exist", "the links above lead to all pages")
        return site.error(request, error.status_code, error.detail, None)

    static = StaticFiles(directory=Path(__file__).with_name("static"), packages=[("registry.design", "static")])
    return Starlette(
        routes=[*(Route(path, site.page(make)) for path, make in PAGES.items()), Mount("/static", static)],
        middleware=[Middleware(Guard)],
        exception_handlers={HTTPException: failed},
    )
