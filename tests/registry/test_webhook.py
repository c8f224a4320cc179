"""Proves: what is registered, composed and opted out is posted, signed, once it is done; no server fails a command."""

import hashlib
import hmac
import itertools
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from registry import Recipe, Registry
from registry.errors import InvalidInputError
from store import webhook as webhook_module
from store.catalog import NewVersion
from tests.cli.conftest import Reg
from tests.conftest import Zoo
from tests.remarks import Remarks

SECRET = "a secret"


@dataclass
class Receiver:
    """A server on this machine that keeps what is posted to it, and answers with a status.

    Attributes:
        check: is called with each posted document before it is answered.
    """

    status: int = 204
    posted: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    check: Callable[[dict[str, Any]], None] = lambda _: None
    url: str = ""

    @property
    def events(self) -> list[tuple[str, str]]:
        """Action and subject of all that was posted, in order."""
        return [(one["action"], one["subject"]) for one in (json.loads(body) for _, _, body in self.posted)]


@contextmanager
def receiving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.posted.append((self.path, dict(self.headers), body))
            receiver.check(json.loads(body))
            self.send_response(receiver.status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("REG_WEBHOOK", f"{receiver.url}/hooks/path?team=x")
    monkeypatch.setenv("REG_WEBHOOK_SECRET", SECRET)
    yield receiver
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving(monkeypatch) as found:
        yield found


MEAN = Recipe(trunk="mean", router="ridge")


def test_what_was_done_is_posted_and_signed(filled: Registry, receiver: Receiver, zoo: Zoo, tmp_path: Path) -> None:
    home, told, out = filled.home.path, Remarks(), tmp_path / "moe"
    with Registry(home, progress=told) as registry, Registry(home) as other:

        def is_done(document: dict[str, Any]) -> None:
            """Whoever is told can act at once: the event is in the log, and the folder is there."""
            assert document["digest"] in [event.digest for event in other.log()]
            assert document["action"] != "compose" or (out / "config.json").is_file()

        receiver.check = is_done
        registry.add_base("other", zoo.base)
        digest = registry.compose(["code", "math"], out, MEAN).digest
        registry.alias("math", "stable")
        registry.opt_out("math")
        registry.opt_out("math", purge=True)  # it is opted out already
        assert receiver.events == [("add-base", "other@1"), ("compose", digest), ("opt-out", "math@1")]
        for path, headers, body in receiver.posted:
            signed = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
            assert (path, headers["X-Hub-Signature-256"]) == ("/hooks/path?team=x", f"sha256={signed}")
            assert headers["Content-Type"] == "application/json"
            document = json.loads(body)
            (event,) = [event for event in registry.log() if event.id == document["id"]]
            assert document == {"registry": registry.catalog.id, **vars(event)}
        registry.add_base("other", zoo.base)  # nothing new
        assert len(receiver.posted) == 3
    assert "warning" not in told.text


@pytest.mark.check
def test_no_answer_fails_a_command(
    filled: Registry, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_module, "SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes connections, and says nothing
        urls = {
            "it answered 500": (receiver.url, 500),
            "it answered 302": (receiver.url, 302),
            "timed out": (f"http://127.0.0.1:{silent.getsockname()[1]}", 0),
            "refused": ("http://127.0.0.1:1", 0),
            "SSL": (receiver.url.replace("http", "https"), 0),
        }
        for number, (why, (url, status)) in enumerate(urls.items()):
            receiver.status = status
            monkeypatch.setenv("REG_WEBHOOK", f"{url}/token")
            with Registry(filled.home.path, progress=(told := Remarks())) as registry:
                digest = registry.compose(["code", "math"], tmp_path / str(number), MEAN).digest
            (said,) = [line for line in told.sentences if "was not told" in line]
            assert said.startswith(f"warning: {url} was not told of compose {digest}: ")
            assert why in said
            assert (tmp_path / str(number) / "config.json").is_file()
    assert "/elsewhere" not in [path for path, _, _ in receiver.posted]


def test_a_server_that_sends_byte_by_byte_holds_a_command_once_and_briefly(
    filled: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Event()

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            for byte in itertools.cycle(b"HTTP/1.1 200 OK"):
                connection.sendall(bytes([byte]))
                if ended.wait(0.05):
                    return

    monkeypatch.setattr(webhook_module, "SECONDS", 0.3)
    monkeypatch.setenv("REG_WEBHOOK_SECRET", SECRET)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=drip, args=(server,))
        thread.start()
        monkeypatch.setenv("REG_WEBHOOK", url := f"http://127.0.0.1:{server.getsockname()[1]}")
        with Registry(filled.home.path, progress=(told := Remarks())) as registry:
            registry.catalog.add_version(NewVersion("law", "expert", "1" * 64, {}, 0, (), (), {}))
            registry.opt_out("law")
        thread.join(10)  # the connection is cut, though nobody has ended it
        is_cut = not thread.is_alive()
        ended.set()
        thread.join()
    (said,) = [line for line in told.sentences if "was not told" in line]
    assert said == f"warning: {url} was not told of opt-out law@1, law@2: timed out"
    assert is_cut


def test_the_command_says_it_on_stderr(filled: Registry, receiver: Receiver) -> None:
    reg, receiver.status = Reg(filled.home.path), 404
    done = reg("opt-out", "law", "--yes")
    assert f"warning: {receiver.url} was not told of opt-out law@1: it answered 404" in done.stderr
    assert "warning" not in done.stdout
    assert SECRET not in done.output
    shown = reg.json("config")["settings"]["webhook"]
    assert shown == {"value": receiver.url, "source": "environment variable REG_WEBHOOK"}


@pytest.mark.parametrize(
    ("url", "secret", "plain", "why"),
    [
        ("ftp://localhost/x", SECRET, "", "not a URL to post to"),
        ("https://", SECRET, "", "not a URL to post to"),
        ("https://[x/", SECRET, "", "not a URL to post to"),
        ("https://localhost:port/", SECRET, "", "not a URL to post to"),
        ("https://host/a b", SECRET, "", "not a URL to post to"),
        ("https://host/\x07", SECRET, "", "not a URL to post to"),
        ("https://me:pass@host/", SECRET, "", "not a URL to post to"),
        ("http://hooks.example.org/token", SECRET, "", "to hooks.example.org unencrypted"),
        ("https://hooks.example.org/token", "", "", "REG_WEBHOOK_SECRET, which signs what is posted, is not"),
        ("http://localhost:8080", SECRET, "", None),
        ("http://[::1]:8080/x", SECRET, "", None),
        ("https://hooks.example.org/token", SECRET, "", None),
        ("http://hooks.example.org/token", SECRET, "1", None),
    ],
)
def test_a_webhook_that_cannot_be_used_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, secret: str, plain: str, why: str | None
) -> None:
    for name, value in (("", url), ("_SECRET", secret), ("_PLAIN", plain)):
        monkeypatch.setenv(f"REG_WEBHOOK{name}", value)
    if why is None:
        assert SECRET not in repr(webhook_module.Webhook.configured())
        return
    with pytest.raises(InvalidInputError, match=why) as refused:
        Registry(tmp_path / "home")
    assert str(refused.value.hint)
    assert "token" not in refused.value.message
    assert not (tmp_path / "home").exists()
