"""Protection of the server: only browsers on this machine are answered, and other sites' pages are rejected.

A page of another site can make a browser send requests to this machine. With DNS rebinding, where the site points its
own name at 127.0.0.1, it could even read the answer; so the Host header must be one of this machine's own names. Under
these names another site cannot read answers, and only following a link is allowed. A content security policy limits
pages to this server's own scripts and stylesheets: nothing inline, nothing from elsewhere.
"""

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
"""Accepted Host headers, with any port, since a tunnel (`ssh -L`) may use another one."""

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
    "Cache-Control": "no-store",  # purged content must not stay in a browser's cache
}
"""Default headers of every response."""


class Guard:
    """Middleware that rejects requests from elsewhere, and adds `HEADERS` to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
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
    """Return status and reason if a request is rejected, else None."""
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not HOST.fullmatch(hosts[0]):
        return 421, "these pages are only for this machine: open them as http://localhost:PORT/"
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return None
    if headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document":
        return None  # a link was followed
    return 403, "another site's page may not send this request"
