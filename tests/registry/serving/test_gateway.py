"""Proves: a gateway sends each prompt to the adapter that the composed model would go on with, and says so.

The server of adapters is one of this test's own, which answers as OpenAI's API does, and notes what it is sent.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from registry import PassSettings, Recipe, Registry
from registry.composition.route import pick
from registry.errors import InvalidInputError
from registry.io.http_server import listen
from registry.serving import Gateway
from registry.serving.gateway import EXPERT, REASON
from tests.conftest import Zoo
from tests.models import sentences
from tests.pages import answering
from tests.registry.checkpoint.test_adapter import LINEAR, train

NAMES = ("code", "law", "math")
COUNTS = PassSettings(tokens=512, seq_len=32, batch_size=1, sites="counts")


@dataclass
class Adapters:
    """A server of adapters: what it was sent, on how many connections, and when the rest of a stream may go.

    Where it leaves, it closes a connection after an answer that does not say so.
    """

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    connections: int = 0
    leaves: bool = False
    go_on: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def adapters() -> Iterator[Adapters]:
    own = Adapters()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            own.connections += 1

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._answer(200, {"data": [{"id": name} for name in NAMES], "path": self.path})

        def do_POST(self) -> None:  # noqa: RET503
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            own.bodies.append(body)
            own.keys.append(self.headers["Authorization"])
            if body["model"] == "busy":
                return self._answer(503, {"error": {"message": "too many requests"}})
            if not body.get("stream"):
                return self._answer(200, {"model": body["model"], "choices": []})
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"data: first\n\n")
            self.wfile.flush()
            own.go_on.wait(60)
            self.wfile.write(b"data: [DONE]\n\n")

        def _answer(self, status: int, document: Any) -> None:
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            self.close_connection = own.leaves

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    own.url = f"http://127.0.0.1:{running.server_port}"
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield own
    own.go_on.set()
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.fixture(scope="module")
def folder(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gateway")
    with Registry(root / "home") as registry:
        registry.add_base("base", zoo.base)
        for name in NAMES:
            own = train(zoo.base, root / name, target_modules=LINEAR)
            registry.add_expert(name, own, base="base", data=[zoo.train[name]], settings=COUNTS)
        registry.compose(NAMES, root / "both", Recipe(to="adapters"))
        registry.compose(["code", "math"], root / "dense", Recipe(to="dense", trunk="mean"))
    return root / "both"


@pytest.fixture
def gateway(folder: Path, adapters: Adapters) -> Iterator[str]:
    app = Gateway(folder, adapters.url, {"law": "law-lora"}).app()
    with listen(0) as listening, answering(app, listening) as url:
        yield url


@contextmanager
def asking(
    url: str, path: str, body: dict[str, Any] | list[Any] | bytes | None, **headers: str
) -> Iterator[HTTPResponse]:
    with closing(HTTPConnection(urlsplit(url).netloc, timeout=60)) as connection:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request("GET" if body is None else "POST", path, data, headers)
        with connection.getresponse() as answer:
            yield answer


def ask(url: str, path: str, body: Any, **headers: str) -> tuple[int, Any, Any]:
    """Return status, headers, and the document of an answer."""
    with asking(url, path, body, **headers) as answer:
        return answer.status, answer.headers, json.loads(answer.read())


def test_each_prompt_goes_to_the_adapter_that_the_model_would_take(
    folder: Path, gateway: str, adapters: Adapters
) -> None:
    prompts = [(name, text) for name in NAMES for text in sentences(name, 6, seed=3)]
    served = {name: name for name in NAMES} | {"law": "law-lora"}
    right = 0
    for name, text in prompts:
        asked = {"model": "auto", "prompt": text, "n": 2}
        status, headers, answer = ask(gateway, "/v1/completions", asked, Authorization="Bearer key")
        expert = pick(folder, text)
        assert (status, headers[EXPERT], answer["model"]) == (200, expert, served[expert])
        assert adapters.bodies[-1] == {"model": served[expert], "prompt": text, "n": 2}
        assert float(headers[REASON].split()[0]) >= 0
        right += expert == name
    assert set(adapters.keys) == {"Bearer key"}
    assert right > len(prompts) / 2  # the experts can be told apart


def test_a_named_expert_is_kept(gateway: str, adapters: Adapters) -> None:
    for asked, sent in (("math", "math"), ("law", "law-lora"), ("law-lora", "law-lora")):
        _, headers, _ = ask(gateway, "/v1/completions", {"model": asked, "prompt": "x"})
        assert headers[REASON] == "asked for"
        assert adapters.bodies[-1]["model"] == sent


def test_connections_are_kept_until_the_server_closes_them(gateway: str, adapters: Adapters) -> None:
    for leaves, connections in ((False, 1), (False, 1), (True, 1), (False, 2), (False, 2)):
        adapters.leaves = leaves
        assert ask(gateway, "/v1/completions", {"prompt": "the court finds"})[0] == 200
        assert adapters.connections == connections
        time.sleep(0.2 * leaves)  # until it is closed


def test_an_answer_is_streamed(gateway: str, adapters: Adapters) -> None:
    with asking(gateway, "/v1/completions", {"prompt": "the court finds", "stream": True}) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.read1(100) == b"data: first\n\n"  # before the server sends the rest
        adapters.go_on.set()
        assert answer.read() == b"data: [DONE]\n\n"


def test_other_paths_are_passed_on_to_this_machine_alone(gateway: str) -> None:
    assert ask(gateway, "/v1/models", None, Host="rebound.example")[0] == 421
    assert ask(gateway, "/v1/models?limit=3", None)[2]["path"] == "/v1/models?limit=3"


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/completions", {"prompt": ["a", "b"]}, "prompt must be one text"),
        ("/v1/completions", {"model": "auto"}, "prompt must be one text"),
        ("/v1/completions", {"prompt": ""}, "the text has no token"),
        ("/v1/completions", [], "the request must be an object"),
        ("/v1/completions", b"{", "the request is not JSON"),
        ("/v1/completions", b"\xff", "the request is not JSON"),
        ("/v1/chat/completions", {"messages": "hello"}, "messages must be a list"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, "the chat template does not take"),
    ],
)
def test_what_cannot_be_read_is_refused_and_not_sent(
    gateway: str, adapters: Adapters, path: str, body: Any, message: str
) -> None:
    status, _, answer = ask(gateway, path, body)
    assert status == 400
    assert message in answer["error"]["message"]
    assert adapters.bodies == []


def test_errors_of_the_server_are_passed_on_and_its_absence_is_told(folder: Path, adapters: Adapters) -> None:
    gateway = Gateway(folder, adapters.url, dict.fromkeys(NAMES, "busy"))
    with listen(0) as listening, answering(gateway.app(), listening) as url:
        status, _, answer = ask(url, "/v1/completions", {"prompt": "x"})
        assert (status, answer["error"]["message"]) == (503, "too many requests")
    with listen(0) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    with listen(0) as listening, answering(Gateway(folder, f"{nobody}/v1").app(), listening) as url:
        for body in ({"prompt": "x"}, None):  # of a URL with /v1, as clients have it
            status, _, answer = ask(url, "/v1/completions", body)
            assert status == 502
            assert f"{nobody} does not answer" in answer["error"]["message"]


def test_folders_addresses_and_names_are_checked(folder: Path) -> None:
    with pytest.raises(InvalidInputError, match="does not pick one expert a prompt"):
        Gateway(folder.parent / "dense", "http://127.0.0.1:1")
    for url in ("127.0.0.1:8000", "ftp://x", "http://", "http://name:word@host", "http://x/?q=1"):
        with pytest.raises(InvalidInputError, match="is not the address of a server"):
            Gateway(folder, url)
    with pytest.raises(InvalidInputError, match="'german' is not among the folder's experts: code, law, math"):
        Gateway(folder, "http://x", {"german": "g"})
