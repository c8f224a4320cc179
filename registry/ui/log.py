"""The page of the log."""

from itertools import groupby

from starlette.requests import Request
from starlette.responses import Response

from registry.ui.site import Site, url, whole
from registry.ui.wording import day

PAGE = 100
"""Events per page."""


def log(site: Site, request: Request) -> Response:
    """Return the log, newest first, by day."""
    before = whole(request, "before", 0) or None
    events = site.registry.log(limit=PAGE + 1, before=before)
    older = url("log", before=events[PAGE - 1].id) if len(events) > PAGE else None
    days = [(name, list(found)) for name, found in groupby(events[:PAGE], key=lambda event: day(event.at))]
    return site.render(
        request,
        "log.html",
        days=days,
        older=older,
        before=before,
        opted_out_here=next((event.subject for event in events[:PAGE] if event.action in ("opt-out", "purge")), ""),
        attributed=any(event.actor for event in events[:PAGE]),
    )
