"""A gateway in front of a server of adapters: it reads each prompt, picks its expert, and forwards under its name.

It speaks OpenAI's API as vLLM, LoRAX and llama.cpp's server do, where `model` names the adapter of a request.
"""

import json
import selectors
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from registry.composition.route import ExpertPicker
from registry.errors import InvalidInputError, RegError, StorageError, first_line
from registry.io.limits import JSON_BYTES
from registry.serving.hub_api import Allowed

EXPERT, REASON = "X-Reg-Expert", "X-Reg-Reason"
"""Headers of an answer: the expert that was picked, and why."""

_PROMPTS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
"""Path → the key of its prompt."""
_KEPT = ("authorization", "content-type", "accept")
_SECONDS = 600  # that the server may be silent
_PIECE = 1 << 16


class Gateway:
    """Forwards requests to a server of adapters, each to the adapter of its prompt.

    A request whose `model` is the name of an expert keeps it. Prompts are routed by the tokens of a folder of adapters.

    Args:
        folder: a composition by `--to adapters` of the experts that the server has.
        url: the server, with or without `/v1`.
        names: expert → the name that the server knows it by; others have their own.

    Raises:
        InvalidInputError: the folder's model must run to pick an expert, the URL is not one, or a name is of no expert.
        CheckpointError: the folder is damaged, or has no tokenizer.
    """

    def __init__(self, folder: Path, url: str, names: Mapping[str, str] | None = None) -> None:
        picker = ExpertPicker.of(folder)
        if picker is None:
            raise InvalidInputError(
                f"{folder} does not pick one expert a prompt by its tokens alone",
                "compose the adapters that the server has: reg compose --to adapters --experts A,B --out DIR",
            )
        parts = urlsplit(url.rstrip("/").removesuffix("/v1"))
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise InvalidInputError(f"{url!r} is not the address of a server", "such as http://127.0.0.1:8000")
        if strangers := sorted(set(names or {}) - set(picker.members)):
            raise InvalidInputError(
                f"{strangers[0]!r} is not among the folder's experts: {', '.join(picker.members)}", "name one of them"
            )
        self._picker, self._server = picker, _Server(parts)
        self.names = {member: member for member in picker.members} | dict(names or {})
        """Expert → the name that the server knows it by."""

    def app(self) -> Starlette:
        """Return the application."""
        prompts = [Route(path, self._routed, methods=["POST"]) for path in _PROMPTS]
        routes = [*prompts, Route("/{path:path}", self._passed, methods=["GET"])]
        return Starlette(routes=routes, middleware=[Middleware(Allowed, tokens=())])

    def chosen(self, path: str, body: Mapping[str, Any]) -> tuple[str, str]:
        """Return the expert of a request and why (InvalidInputError: its prompt cannot be read)."""
        asked = body.get("model")
        for expert, served in self.names.items():
            if asked in (expert, served):
                return expert, "asked for"
        key = _PROMPTS[path]
        prompt = body.get(key)
        if key == "prompt" and isinstance(prompt, list) and len(prompt) == 1:
            (prompt,) = prompt
        if key == "prompt" and not isinstance(prompt, str):
            raise InvalidInputError("prompt must be one text", "send one request for each prompt")
        if key == "messages" and not (isinstance(prompt, list) and all(isinstance(one, dict) for one in prompt)):
            raise InvalidInputError("messages must be a list of objects with role and content", "see OpenAI's API")
        expert, ahead = self._picker.pick(prompt if isinstance(prompt, str) else [_plain(one) for one in prompt or []])
        why = "nothing tells" if ahead is None else f"{ahead:.3f} above the evidence of the next"
        return expert, why

    async def _routed(self, request: Request) -> Response:
        return await run_in_threadpool(self._answered, request, await request.body())

    def _answered(self, request: Request, data: bytes) -> Response:
        """Return the answer to a prompt."""
        try:
            if len(data) > JSON_BYTES:
                raise InvalidInputError(
                    f"the request has {len(data):,} bytes, at most {JSON_BYTES:,} are read", "send less"
                )
            body = json.loads(data)
            if not isinstance(body, dict):
                raise InvalidInputError("the request must be an object", "see OpenAI's API")
            expert, why = self.chosen(request.url.path, body)
            sent = json.dumps(body | {"model": self.names[expert]}).encode()
            names = {EXPERT: expert.encode("ascii", "replace").decode(), REASON: why}
            return self._server.passed_on("POST", request, sent, names)
        except StorageError as error:
            return _failed(502, error.message, "server_error")
        except RegError as error:
            return _failed(400, error.message)
        except ValueError as error:  # of JSON or of its characters
            return _failed(400, f"the request is not JSON: {error}")

    async def _passed(self, request: Request) -> Response:
        def answered() -> Response:
            try:
                return self._server.passed_on("GET", request, b"", {})
            except StorageError as error:
                return _failed(502, error.message, "server_error")

        return await run_in_threadpool(answered)


class _Server:
    """The server of adapters, whose connections serve one request after another."""

    def __init__(self, parts: SplitResult) -> None:
        self._parts, self._idle = parts, list[HTTPConnection]()
        weakref.finalize(self, _close, self._idle)

    def passed_on(self, method: str, request: Request, body: bytes, headers: Mapping[str, str]) -> Response:
        """Send a request on, and return the answer: as its pieces come, or at once where its length is told.

        (StorageError: there is no answer, or it breaks off.)
        """
        connection, answer = self._sent(method, request, body)
        named = dict(headers) | {"Content-Type": answer.headers.get("Content-Type", "application/json")}
        if answer.length is not None:
            with self._again(connection, answer):
                try:
                    return Response(answer.read(), answer.status, named)
                except (OSError, HTTPException) as error:
                    raise StorageError(
                        f"the server's answer breaks off: {first_line(error)}", "send it again"
                    ) from error

        def pieces() -> Iterator[bytes]:
            with self._again(connection, answer):
                while data := answer.read1(_PIECE):
                    yield data

        return StreamingResponse(pieces(), answer.status, named)

    def _sent(self, method: str, request: Request, body: bytes) -> tuple[HTTPConnection, HTTPResponse]:
        """Send a request on, and return the answer, whose body is still to come (StorageError: no answer)."""
        parts, connection = self._parts, self._free()
        headers = {name: request.headers[name] for name in _KEPT if name in request.headers}
        query = f"?{request.url.query}" if request.url.query else ""
        try:
            connection.request(method, parts.path.rstrip("/") + request.url.path + query, body or None, headers)
            return connection, connection.getresponse()
        except (OSError, HTTPException) as error:
            connection.close()
            raise StorageError(
                f"{parts.scheme}://{parts.netloc} does not answer: {first_line(error)}", "start the server of adapters"
            ) from error

    def _free(self) -> HTTPConnection:
        """Return a connection for one request: an idle one that the server has not closed, or a new one."""
        try:
            connection = self._idle.pop()
        except IndexError:
            kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
            return kind(str(self._parts.hostname), self._parts.port, timeout=_SECONDS)
        if connection.sock is not None:
            with selectors.DefaultSelector() as waiting:
                waiting.register(connection.sock, selectors.EVENT_READ)
                if waiting.select(0):  # the end, or what nobody asked for
                    connection.close()  # and opens again for the request
        return connection

    @contextmanager
    def _again(self, connection: HTTPConnection, answer: HTTPResponse) -> Iterator[None]:
        """Keep a connection for the next request once its answer is read whole; close it otherwise."""
        try:
            yield
        finally:
            if not answer.isclosed():
                connection.close()
            self._idle.append(connection)


def _close(connections: Iterable[HTTPConnection]) -> None:
    for connection in connections:
        connection.close()


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its parts of text joined, as chat templates read them."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return {**message, "content": content if isinstance(content, str) else ""}


def _failed(status: int, message: str, kind: str = "invalid_request_error") -> Response:
    """Return an error as OpenAI's API has it."""
    return JSONResponse({"error": {"message": message, "type": kind, "code": None}}, status)
