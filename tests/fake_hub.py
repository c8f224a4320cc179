"""A Hugging Face Hub on this machine: serves files as model repositories, and refuses as the real one does."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest


class Request(NamedTuple):
    """What a client asked for: `file` is set where it asked for a file of a repository."""

    method: str
    path: str
    token: str | None
    file: str | None


@dataclass
class Repository:
    """A model repository: revision → commit, commit → files."""

    private: bool = False
    gated: bool = False
    revisions: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)


class FakeHub:
    """A server for as long as it is entered.

    Attributes:
        url: the value for HF_ENDPOINT.
        requests: everything that was asked for, in order.
        tokens: the tokens it knows; private repositories are shown to them alone, gated ones to those in `admitted`.
        failing: "GET config.json", "HEAD config.json", "GET api" (the lists of files) → the status it is answered with.
        cut: names of files whose next GET breaks off in the middle.
        page: if set, the body that every list of files is answered with.
    """

    handler: "ClassVar[type[Handler]]"

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[Request] = []
        self.tokens: set[str] = set()
        self.admitted: set[str] = set()
        self.failing: dict[str, int] = {}
        self.cut: set[str] = set()
        self.page: bytes | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (self.handler,), {"hub": self}))
        self._server.daemon_threads = False  # server_close waits for them
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> "FakeHub":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def add(self, repo_id: str, files: Mapping[str, bytes] | Path, *, revision: str = "main", **access: bool) -> str:
        """Commit files, or a folder's, to a revision of a repository (`private`, `gated`), and return the commit."""
        if isinstance(files, Path):
            paths = [path for path in files.rglob("*") if path.is_file()]
            files = {path.relative_to(files).as_posix(): path.read_bytes() for path in paths}
        repository = self.repositories.setdefault(repo_id, Repository())
        repository.private, repository.gated = access.get("private", False), access.get("gated", False)
        content = [(name, hashlib.sha256(data).hexdigest()) for name, data in sorted(files.items())]
        commit = hashlib.sha1(json.dumps([repo_id, content]).encode()).hexdigest()
        repository.commits[commit] = dict(files)
        repository.revisions |= {revision: commit, commit: commit}
        return commit

    def fetched(self) -> list[str]:
        """Return the names of the files whose content was asked for since the last call."""
        files = [request.file for request in self.requests if request.method == "GET" and request.file]
        self.requests.clear()
        return sorted(files)


INVALID = "Invalid credentials in Authorization header"


class Handler(BaseHTTPRequestHandler):
    """Answers what downloads ask for."""

    hub: ClassVar[FakeHub]
    protocol_version = "HTTP/1.1"
    timeout = 60
    wbufsize = -1  # head and body in one packet

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has in the base class
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        api = re.fullmatch(r"/api/models/(.+?)(?:/(revision|tree)/([^/]+))?", path)
        resolve = re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path)
        file = unquote(resolve[3]) if resolve else None
        token = self._noted(file)
        if api:
            repo_id, revision = api[1], unquote(api[3] or "main")
        elif resolve:
            repo_id, revision = resolve[1], unquote(resolve[2])
        else:
            return self._send(404)
        if token and token not in self.hub.tokens:
            return self._refuse(401, None, INVALID, token)
        repository = self.hub.repositories.get(repo_id)
        if repository is None or (repository.private and token is None):
            return self._refuse(404 if token else 401, "RepoNotFound", "Repository not found", token)
        if (commit := repository.revisions.get(revision)) is None:
            return self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}", token)
        files = repository.commits[commit]
        if status := self.hub.failing.get(f"{self.command} {file or 'api'}"):
            return self._refuse(status, None, "Internal Error", token)
        if file is None:
            return self._list(repo_id, commit, files, tree=api is not None and api[2] == "tree")
        if repository.gated and token not in self.hub.admitted:  # unlike its files, its list is shown to everyone
            return self._refuse(403 if token else 401, "GatedRepo", "You are not in the authorized list", token)
        if file not in files:
            return self._refuse(404, "EntryNotFound", "Entry not found", token)
        return self._file(file, files[file], commit)

    def _noted(self, file: str | None = None) -> str | None:
        """Note the request, and return its token."""
        bearer = re.fullmatch("Bearer (.+)", self.headers.get("Authorization") or "")
        token = bearer[1] if bearer else None
        self.hub.requests.append(Request(self.command, urlsplit(self.path).path, token, file))
        return token

    def _list(self, repo_id: str, commit: str, files: dict[str, bytes], *, tree: bool) -> None:
        if self.hub.page is not None:
            return self._send(200, self.hub.page, {"Content-Type": "text/html"})
        private = self.hub.repositories[repo_id].private
        sized = "blobs=true" in urlsplit(self.path).query.lower()
        siblings = [{"rfilename": name} | ({"size": len(data)} if sized else {}) for name, data in files.items()]
        if tree:
            return self._json([entry(name, data) for name, data in sorted(files.items())])
        return self._json({"id": repo_id, "sha": commit, "private": private, "siblings": siblings})

    def _file(self, name: str, data: bytes, commit: str) -> None:
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": commit}
        headers |= {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        if span := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or ""):
            start = int(span[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            return self._send(206, data[start:], headers)
        if self.command == "GET" and name in self.hub.cut:
            self.hub.cut.remove(name)
            self.close_connection = True
            return self._send(200, data[: len(data) // 2], headers | {"Content-Length": str(len(data))})
        return self._send(200, data, headers)

    def _json(self, document: Any, status: int = 200) -> None:
        self._send(status, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str | None, message: str, token: str | None) -> None:
        """Answer as the Hub does, and give the token away, to see that it is shown to nobody."""
        headers = {"X-Error-Message": message, "Content-Type": "application/json"}
        if code is not None:
            headers["X-Error-Code"] = code
        self._send(status, json.dumps({"error": f"{message} ({token})"}).encode(), headers)

    def _send(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | dict(headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


FakeHub.handler = Handler
LFS = (".safetensors",)
"""Names of what the Hub keeps as large files end so."""


def entry(name: str, data: bytes) -> dict[str, Any]:
    """Return what a list of files says of one: git's name for it, and of a large file its SHA-256."""
    found: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": git_oid(data)}
    if name.endswith(LFS) and data:
        oid = hashlib.sha256(data).hexdigest()
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(data)}\n".encode()
        found |= {"oid": git_oid(pointer), "lfs": {"oid": oid, "size": len(data), "pointerSize": len(pointer)}}
    return found


def git_oid(data: bytes) -> str:
    """Return what git calls a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def use_hub(monkeypatch: pytest.MonkeyPatch, hub: FakeHub, home: Path) -> None:
    """Make huggingface_hub, which reads its environment when it is imported, use `hub` and a cache below `home`.

    Whoever calls this calls `huggingface_hub.close_session()` before the server is left, which waits for connections.
    """
    from huggingface_hub import close_session, constants

    close_session()
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    settings = {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_STORED_TOKENS_PATH": str(home / "stored_tokens"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": False,
        "HF_HUB_DISABLE_TELEMETRY": True,
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_ETAG_TIMEOUT": 60,
        "HF_HUB_DOWNLOAD_TIMEOUT": 60,
    }
    for name, value in settings.items():
        monkeypatch.setattr(constants, name, value)
