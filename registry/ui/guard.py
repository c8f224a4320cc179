"""Who is answered: the browser of this machine, and of the pages that it shows none but this registry's own.

A page elsewhere can make a browser ask this machine. Under a name of its own that it points at 127.0.0.1 (DNS
rebinding) it would even read the answer: so the Host must be one of this machine's own names. Under the right name it
cannot read, and what it may make the browser ask is following a link. What a page may load or run is told to the
browser by a content security policy: this server's own script and stylesheet, nothing inline, nothing from elsewhere.
"""

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
"""What Host may say. Any port: a tunnel (`ssh -L`) has another one at its other end."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",  # what is purged must not stay in a browser's cache
}
"""Sent with every answer that does not set them itself."""


class Guard:
    """Stands before an application: refuses what comes from elsewhere, and adds `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = _refusal(Headers(scope=scope))
        app = self.app if refusal is None else PlainTextResponse(f"{refusal[1]}\n", refusal[0])
        return await app(scope, receive, sending)


def _refusal(headers: Headers) -> tuple[int, str] | None:
    """Return status and reason where a request is refused, None where it is answered."""
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not HOST.fullmatch(hosts[0]):
        return 421, "these pages are for this machine alone: open them as http://localhost:PORT/"
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return None
    if headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document":
        return None  # a link was followed
    return 403, "another site's page may not ask this"
