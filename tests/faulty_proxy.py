"""A proxy before an object store that fails on purpose: what it does to each request is a list of faults.

It stands between a client and a server, both on this machine, and passes on what no fault is left for.
"""

import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal["500", "slow down", "reset", "hang", "cut", "flip", "reset after", "denied", "expired"]
"""What happens to a request: two statuses; the connection is reset before the request is passed on, or after; nothing
comes; the body of the answer is cut, or one bit of it is another; two refusals."""

_STATUS = {
    "500": (500, "InternalError"),
    "slow down": (503, "SlowDown"),
    "denied": (403, "AccessDenied"),
    "expired": (400, "ExpiredToken"),
}


@dataclass
class FaultyProxy:
    """A running proxy.

    Attributes:
        endpoint: its URL.
        faults: what happens to the next requests that `applies` accepts, in turn; afterwards all are passed on.
        applies: chooses the requests that faults befall, by method and path.
        requests: method and path of all that came, and the fault of each.
    """

    endpoint: str = ""
    faults: list[Fault] = field(default_factory=list)
    applies: Callable[[str, str], bool] = lambda _method, _path: True
    requests: list[tuple[str, str, Fault | None]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next_fault(self, method: str, path: str) -> Fault | None:
        """Take the fault of a request."""
        with self._lock:
            fault = self.faults.pop(0) if self.faults and self.applies(method, path) else None
            self.requests.append((method, path, fault))
            return fault


@contextmanager
def faulty_proxy(server: str, hang_seconds: float = 3.0) -> Iterator[FaultyProxy]:
    """Run a proxy before the server of a URL."""
    host = urlsplit(server).netloc
    proxy = FaultyProxy()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = proxy.next_fault(self.command, self.path)
            if fault in ("hang", "reset"):
                time.sleep(hang_seconds if fault == "hang" else 0)
                return self.give_up()
            if fault in _STATUS:
                status, code = _STATUS[fault]
                data = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
                return self.reply(status, {"Content-Type": "application/xml"}, data, len(data))
            connection = http.client.HTTPConnection(host, timeout=60)
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            data = answer.read()
            connection.close()
            if fault == "reset after":
                return self.give_up()
            own = ("content-length", "connection", "transfer-encoding")
            headers = {k: v for k, v in answer.getheaders() if k.lower() not in own}
            length = int(answer.getheader("Content-Length") or 0) if self.command == "HEAD" else len(data)
            if fault == "flip" and data:
                data = data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
            if fault == "cut" and data:
                self.reply(answer.status, headers, data[: len(data) // 2], length)
                return self.give_up()
            return self.reply(answer.status, headers, data, length)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_any  # noqa: N815

        def reply(self, status: int, headers: dict[str, str], data: bytes, length: int) -> None:
            self.send_response_only(status)
            for name, value in (headers | {"Content-Length": str(length)}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)
            self.wfile.flush()

        def give_up(self) -> None:
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    listening.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that gave up
    proxy.endpoint = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    with listening:
        try:
            yield proxy
        finally:
            listening.shutdown()
            thread.join()
