"""The read API of the Hugging Face Hub over the repositories of a registry, for HF_ENDPOINT.

It answers what `huggingface_hub` asks for: the description of a repository, its tree, and files with ranges and ETags.
A repository that is unknown, one of what was opted out, and a request without a known token have an answer each.
"""

import hmac
from collections.abc import Callable, Collection
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from registry.errors import ConflictError, NotFoundError, RegError
from registry.io.http_server import LOCAL_HOST
from registry.serving.repositories import MAIN, Repositories, Repository, RevisionError, ServedFile

_GONE = 410
_CODES = {401: "GatedRepo", 404: "RepoNotFound"}


def hub_app(repositories: Repositories, tokens: Collection[str] = ()) -> Starlette:
    """Return the application; with `tokens` each request needs one of them, else only this machine is answered."""
    routes = [
        ("/api/models", lambda request: JSONResponse([{"id": name} for name in repositories.names()])),
        ("/api/models/{group}/{name}", lambda request: _described(_repository(repositories, request))),
        (
            "/api/models/{group}/{name}/revision/{revision}",
            lambda request: _described(_repository(repositories, request)),
        ),
        ("/api/models/{group}/{name}/tree/{revision}", lambda request: _tree(_repository(repositories, request), "")),
        (
            "/api/models/{group}/{name}/tree/{revision}/{path:path}",
            lambda request: _tree(_repository(repositories, request), request.path_params["path"]),
        ),
        (
            "/{group}/{name}/resolve/{revision}/{path:path}",
            lambda request: _file(_repository(repositories, request), request),
        ),
        (
            "/{group}/{name}/raw/{revision}/{path:path}",
            lambda request: _file(_repository(repositories, request), request),
        ),
    ]
    return Starlette(
        routes=[Route(path, _answering(answer), methods=["GET", "HEAD"]) for path, answer in routes],
        middleware=[Middleware(Allowed, tokens=tokens)],
    )


class Allowed:
    """Middleware that answers requests with a known token, or where there are none those from this machine."""

    def __init__(self, app: ASGIApp, tokens: Collection[str]) -> None:
        self._app, self._tokens = app, [token.encode() for token in tokens]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and (refusal := self._refusal(Request(scope))) is not None:
            return await refusal(scope, receive, send)
        return await self._app(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        if not self._tokens:
            if LOCAL_HOST.fullmatch(request.headers.get("host", "")):
                return None
            return refused(421, "this server is only for this machine: ask http://127.0.0.1:PORT")
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        known = [hmac.compare_digest(given.encode(), token) for token in self._tokens]
        if scheme.lower() == "bearer" and any(known):
            return None
        return refused(401, "this registry asks for a token that it knows: set HF_TOKEN", "GatedRepo")


def refused(status: int, message: str, code: str | None = None) -> Response:
    """Return an answer that clients of the Hub tell their user."""
    headers = {"X-Error-Message": message.encode("ascii", "replace").decode()} | (
        {"X-Error-Code": code} if code else {}
    )
    return JSONResponse({"error": message}, status, headers)


def _answering(answer: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """Return an endpoint that runs in a thread, and says what is missing, gone or wrong."""

    def endpoint(request: Request) -> Response:
        try:
            return answer(request)
        except RevisionError as error:
            return refused(404, _told(error), "RevisionNotFound")
        except NotFoundError as error:
            return refused(404, _told(error), "RepoNotFound")
        except ConflictError as error:
            return refused(_GONE, _told(error))
        except RegError as error:
            return refused(409, _told(error))

    return endpoint


def _told(error: RegError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message


def _repository(repositories: Repositories, request: Request) -> Repository:
    given = request.path_params
    return repositories.find(f"{given['group']}/{given['name']}", given.get("revision", MAIN))


def _described(found: Repository) -> Response:
    siblings = [
        {"rfilename": name, "size": file.size, "blobId": file.git_name} | _large(file)
        for name, file in found.files.items()
    ]
    return JSONResponse(
        {
            "id": found.name,
            "modelId": found.name,
            "sha": found.commit,
            "private": False,
            "gated": False,
            "disabled": False,
            "tags": [],
            "library_name": "transformers",
            "pipeline_tag": "text-generation",
            "siblings": siblings,
        }
    )


def _tree(found: Repository, below: str) -> Response:
    start = f"{below}/" if below else ""
    files = {name: file for name, file in found.files.items() if name.startswith(start)}
    if below and not files:
        return refused(404, f"{found.name} has no folder {below!r}", "EntryNotFound")
    return JSONResponse(
        [
            {"type": "file", "path": name, "size": file.size, "oid": file.git_name} | _large(file)
            for name, file in files.items()
        ]
    )


def _large(file: ServedFile) -> dict[str, Any]:
    if (pointer := file.pointer) is None:
        return {}
    return {"lfs": {"oid": file.sha256, "sha256": file.sha256, "size": file.size, "pointerSize": len(pointer)}}


def _file(found: Repository, request: Request) -> Response:
    name = request.path_params["path"]
    if (file := found.files.get(name)) is None:
        return refused(404, f"{found.name} has no file {name!r}", "EntryNotFound")
    headers = {"ETag": f'"{file.etag}"', "X-Repo-Commit": found.commit}
    if file.sha256:
        headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(file.size)}
    return FileResponse(file.path, headers=headers, media_type="application/octet-stream")
