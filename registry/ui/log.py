"""The page of the log."""

from starlette.requests import Request
from starlette.responses import Response

from registry.ui.site import Site, url, whole

PAGE = 100
"""Events per page."""


def log(site: Site, request: Request) -> Response:
    """Return the log, newest first."""
    before = whole(request, "before", 0) or None
    events = site.registry.log(limit=PAGE + 1, before=before)
    older = url("log", before=events[PAGE - 1].id) if len(events) > PAGE else None
    return site.render(request, "log.html", events=events[:PAGE], older=older, before=before)
