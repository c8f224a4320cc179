"""The application, and the routes to all pages."""

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
