"""Protection of the server: only browsers on this machine are answered, and other sites' pages are rejected.

A page of another site can make a browser send requests to this machine. With DNS rebinding, where the site points its
own name at 127.0.0.1, it could even read the answer; so the Host header must be one of this machine's own names. Under
these names another site cannot read answers, and only following a link is allowed. A content security policy limits
pages to this server's own scripts and stylesheets: nothing inline, nothing from elsewhere.

With write access, work can be started by whoever knows the secret of this start of the server. The browser gets it
in an address and keeps it in a cookie that no other site's request carries and no script reads. A form must come from
a page of this server (Origin) and hold a value that only a browser with the cookie was shown.
"""

import hashlib
import hmac
import secrets
from html import escape
from urllib.parse import quote, urlencode

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from registry.errors import RegError
from registry.io.http_server import LOCAL_HOST

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer a browser leaves Origin out of this server's own forms
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",  # purged content must not stay in a browser's cache
}
"""Default headers of every response."""

_OTHER_SITE = 403, "another site's page may not send this request"

TOKEN = "token"  # the query parameter with which a browser brings the secret
MAY_WRITE = "reg.may_write"  # key of a request's scope: True if its browser has the secret


class RefusedError(RegError):
    """A request to start or cancel work that did not come from a page of this server."""


class WriteAccess:
    """The secret (`token`) of one start of a server that may start work, and the value that its forms hold."""

    def __init__(self, home: str) -> None:
        """Draw a secret; servers on other ports have the same host, so cookies have the name of their registry."""
        self.token = secrets.token_urlsafe(32)
        self.form_token = hmac.new(self.token.encode(), b"form", hashlib.sha256).hexdigest()
        self.cookie = f"reg-{hashlib.sha256(home.encode()).hexdigest()[:12]}"

    def is_token(self, text: str) -> bool:
        """Return whether a text is the secret."""
        return hmac.compare_digest(text.encode(), self.token.encode())

    def has(self, headers: Headers) -> bool:
        """Return whether a request carries the secret in its cookie."""
        return any(self.is_token(cookie_parser(cookies).get(self.cookie, "")) for cookies in headers.getlist("cookie"))

    def check_form(self, may_write: bool, form_token: str) -> None:
        """Check that a form was sent by a page of this server, to a browser with the secret (else RefusedError)."""
        if not may_write:
            raise RefusedError("this browser may not start work here", "open the address that reg ui --write printed")
        if not hmac.compare_digest(form_token.encode(), self.form_token.encode()):
            raise RefusedError(
                "the form is not from this start of reg ui: nothing was done", "go back, reload the page, and repeat"
            )


class Guard:
    """Middleware that rejects requests from elsewhere, and adds `HEADERS` to every response."""

    def __init__(self, app: ASGIApp, access: WriteAccess | None = None) -> None:
        self.app = app
        self.access = access

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

        headers = Headers(scope=scope)
        if (refusal := _refusal(scope, headers, may_post=self.access is not None)) is not None:
            return await PlainTextResponse(f"{refusal[1]}\n", refusal[0])(scope, receive, sending)
        if self.access is not None:
            scope[MAY_WRITE] = self.access.has(headers)
            if scope["method"] == "GET" and (answer := _exchange(self.access, scope)) is not None:
                return await answer(scope, receive, sending)
            if headers.get("sec-fetch-site") == "cross-site" and not scope[MAY_WRITE]:
                return await _go_on(scope)(scope, receive, sending)
        return await self.app(scope, receive, sending)


def _refusal(scope: Scope, headers: Headers, *, may_post: bool) -> tuple[int, str] | None:
    """Return status and reason if a request is rejected, else None."""
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not LOCAL_HOST.fullmatch(hosts[0]):
        return 421, "these pages are only for this machine: open them as http://localhost:PORT/"
    if may_post and scope["method"] not in ("GET", "HEAD"):
        own = headers.getlist("origin") == [f"http://{hosts[0].lower()}"]
        return None if own and headers.get("sec-fetch-site", "same-origin") == "same-origin" else _OTHER_SITE
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return None
    if headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document":
        return None  # a link was followed
    return _OTHER_SITE


def _exchange(access: WriteAccess, scope: Scope) -> Response | None:
    """Return the answer to an address with the secret: a cookie, and the address without it; None for others."""
    given = QueryParams(scope["query_string"]).getlist(TOKEN)
    if not given:
        return None
    if len(given) > 1 or not access.is_token(given[0]):
        return PlainTextResponse("this address is from another start of reg ui: open the one it printed last\n", 403)
    answer = _go_on(scope)
    answer.set_cookie(access.cookie, access.token, httponly=True, samesite="strict", path="/")
    return answer


def _go_on(scope: Scope) -> HTMLResponse:
    """Return a page that goes on to the address that was asked for, without the secret.

    No browser sends the cookie with a link from elsewhere, nor after a redirect of one: from another program's page, or
    from a report, whose sandbox has no origin. From this page of this server it does.
    """
    query = QueryParams(scope["query_string"]).multi_items()
    rest = urlencode([(name, value) for name, value in query if name != TOKEN])
    path = "/" + quote(scope["path"].lstrip("/"))  # two slashes would name another host
    target = escape(path + (f"?{rest}" if rest else ""))
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={target}">'
        '<link rel="icon" href="/static/icon.svg" type="image/svg+xml">'
        f'<title>reg</title><p><a href="{target}">Go on</a></p></html>'
    )
    return HTMLResponse(page)
