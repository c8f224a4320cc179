"""The pages of a registry, served on this machine for as long as a test wants."""

import http.client
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlencode

from starlette.types import ASGIApp

from registry import Registry
from registry.io.http_server import listen, server
from registry.ui import Jobs, WriteAccess, make_app

VOID = {"meta", "link", "input", "br", "rect", "circle", "path"}
"""Elements without an end."""


@dataclass
class Answer:
    """What a page answered: status, headers by lower-case name, and text."""

    status: int
    headers: dict[str, str]
    text: str


class Page(HTMLParser):
    """A page's elements: that each is closed where it has to be, no id is there twice, and what its text and links are.

    Raises:
        AssertionError: an end has no beginning, or an id is there twice.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.words: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if (own := given.get("id")) is not None:
            assert own not in self.ids, own
            self.ids.add(own)
        if tag == "a":
            self.links.append(given.get("href") or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], (tag, self.getpos())
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.words += data.split()

    @property
    def text(self) -> str:
        """All text, words one space apart."""
        return " ".join(self.words)


@dataclass
class Pages:
    """Pages that are served, and what was asked of them."""

    port: int
    asked: list[str] = field(default_factory=list)
    access: WriteAccess | None = None
    jobs: Jobs | None = None

    @property
    def address(self) -> str:
        """Where they begin."""
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, path: str, *, method: str = "GET", headers: dict[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        """Return the answer to one request; a `Host` in `headers` takes the place of the right one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            connection.putrequest(method, path, skip_host=headers is not None and "Host" in headers)
            for name, value in (headers or {}).items():
                if value:
                    connection.putheader(name, value)
            if body:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
            answer = connection.getresponse()
            text = answer.read().decode()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)
        finally:
            connection.close()

    def send(self, path: str, headers: dict[str, str] | None = None, **form: object) -> Answer:
        """Return the answer to a form of a page, as the browser with the secret sends it; `headers` replace its own."""
        assert self.access is not None
        own = self.cookie | {"Origin": self.address, "Content-Type": "application/x-www-form-urlencoded"}
        own |= {"Sec-Fetch-Site": "same-origin"}
        values = {"form_token": self.access.form_token} | form
        body = urlencode(values, doseq=True).encode()
        return self.ask(path, method="POST", headers=own | (headers or {}), body=body)

    @property
    def cookie(self) -> dict[str, str]:
        """The header of the browser with the secret."""
        assert self.access is not None
        return {"Cookie": f"{self.access.cookie}={self.access.token}"}

    def read(self, *path: str, status: int = 200, **query: object) -> Page:
        """Return a page that answers with `status` and is well formed."""
        where = "/" + "/".join(path) + (f"?{urlencode(query, doseq=True)}" if query else "")
        self.asked.append(where)
        answer = self.ask(where)
        assert answer.status == status, (where, answer.text)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        return Page(answer.text)


PROGRAM = (sys.executable, "-P", "-m", "cli.job")
"""What runs the commands of jobs, before the registry's options."""


@contextmanager
def served(
    registry: Registry,
    command: tuple[str, ...] = ("reg",),
    *,
    may_write: bool = False,
    program: Sequence[str] = PROGRAM,
) -> Iterator[Pages]:
    """Serve the pages of `registry` on any port that is free; with `may_write`, jobs can be started from them."""
    with ExitStack() as stack:
        listening = stack.enter_context(listen(0))
        access = jobs = None
        if may_write:
            access = WriteAccess(str(registry.home.path))
            jobs = stack.enter_context(Jobs([*program, "--home", str(registry.home.path)]))
        stack.enter_context(answering(make_app(registry, command, access=access, jobs=jobs), listening))
        yield Pages(listening.getsockname()[1], access=access, jobs=jobs)


@contextmanager
def answering(app: ASGIApp, listening: socket.socket) -> Iterator[str]:
    """Serve an application on a socket, in a thread, and yield its address."""
    running = server(app)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not running.started and thread.is_alive():
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join()
