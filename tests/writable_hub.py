"""A Hub on this machine that can be pushed to: create, preupload, LFS batch, upload and verify, commit, branch, PR."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from huggingface_hub import ModelCard, close_session

from tests.fake_hub import INVALID, LFS, FakeHub, Handler, Repository, entry, use_hub

TOKEN, READER, STRANGER = "hf_secret_writer", "hf_secret_reader", "hf_secret_stranger"
"""Tokens of somebody who may write to `org`, of somebody who may only read, and of somebody else."""


@dataclass
class Upload:
    """A large file that was sent: its SHA-256, and how many bytes of it arrived."""

    oid: str
    nbytes: int


class WritableHub(FakeHub):
    """A Hub that can be pushed to.

    Attributes:
        objects: SHA-256 → content of the large files that arrived whole, whether a commit names them or not.
        uploads: what was sent, in order, the pieces that broke off included.
        messages: (summary, description) of every commit.
        breaking: SHA-256 of large files whose uploads break off in the middle.
        refusing: "POST commit", "POST create", "POST batch", "POST preupload", "POST branch", "GET whoami" → (status,
            message, X-Error-Code or None).
        lost: the answer to the next commit is lost, though the commit is made.
        spoiling: files whose content is another once it is committed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens = {TOKEN, READER, STRANGER}
        self.objects: dict[str, bytes] = {}
        self.uploads: list[Upload] = []
        self.messages: list[tuple[str, str]] = []
        self.breaking: set[str] = set()
        self.refusing: dict[str, tuple[int, str, str | None]] = {}
        self.lost = False
        self.spoiling: set[str] = set()
        self.before_commit: Callable[[], None] = lambda: None

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        """Return what a repository holds, but for what the Hub itself puts there."""
        repository = self.repositories[repo_id]
        files = repository.commits[repository.revisions[revision]]
        return {name: data for name, data in files.items() if name != ".gitattributes"}


class WritableHandler(Handler):
    """Answers what pushes ask for, and what downloads do."""

    hub: ClassVar[WritableHub]

    def do_GET(self) -> None:  # noqa: N802 - the name it has in the base class
        if urlsplit(self.path).path != "/api/whoami-v2":
            return super().do_GET()
        token = self._noted()
        if self._refused("GET whoami", token):
            return None
        if token not in self.hub.tokens:
            return self._refuse(401, None, INVALID, token)
        name, role = ("stranger" if token == STRANGER else "me"), ("read" if token == READER else "write")
        account = {"type": "user", "name": name, "auth": {"type": "access_token", "accessToken": {"role": role}}}
        return self._json(account)

    def do_PUT(self) -> None:  # noqa: N802 - as above
        oid = urlsplit(self.path).path.removeprefix("/lfs/")
        length = int(self.headers["Content-Length"])
        data = self.rfile.read(length // 2 if oid in self.hub.breaking else length)
        self.hub.uploads.append(Upload(oid, len(data)))
        if oid in self.hub.breaking:
            return self._break_off()
        assert hashlib.sha256(data).hexdigest() == oid
        self.hub.objects[oid] = data
        return self._send(200)

    def _break_off(self) -> None:
        self.close_connection = True
        self.connection.shutdown(2)

    def do_POST(self) -> None:  # noqa: N802 - as above
        token, body = self._noted(), self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        if path == "/api/validate-yaml":
            return self._validate(json.loads(body)["content"])
        for pattern, name in _ROUTES:
            if found := re.fullmatch(pattern, path):
                if self._refused(f"POST {name}", token):
                    return None
                if token is None or token not in self.hub.tokens:
                    return self._refuse(401, None, INVALID, token)
                parts = [unquote(part) for part in found.groups()]
                return getattr(self, f"_{name}")(token, body, query, *parts)  # type: ignore[no-any-return]
        return self._send(404)

    # -- endpoints -----------------------------------------------------------------------------------------------------

    def _validate(self, content: str) -> None:
        """Check a card's metadata, as far as it is known how the Hub does."""
        card: Any = ModelCard(content).data
        data = card.to_dict()
        bases, languages = data.get("base_model", []), data.get("language", [])
        results = [result for model in data.get("model-index", []) for result in model["results"]]
        relations = ("merge", "adapter", "quantized", "finetune")
        valid = {
            "license": str(data.get("license", "mit")) in LICENSES,
            "base_model": all(
                re.fullmatch(r"[\w.-]+/[\w.-]+", b) for b in ([bases] if isinstance(bases, str) else bases)
            ),
            "base_model_relation": data.get("base_model_relation", "merge") in relations,
            "language": all(re.fullmatch("[a-z]{2,3}|code|multilingual", language) for language in languages),
            "model-index": all(r["task"]["type"] and r["dataset"]["type"] and r["dataset"]["name"] for r in results),
        }
        errors = [
            {"message": f'"{name}" must be one of those that the Hub knows'}
            for name, is_valid in valid.items()
            if not is_valid
        ]
        self._json({"errors": errors, "warnings": []}, 400 if errors else 200)

    def _create(self, token: str, body: bytes, _query: Any) -> None:
        asked = json.loads(body)
        repo_id = f"{asked['organization']}/{asked['name']}"
        if repo_id in self.hub.repositories:
            return self._refuse(409, None, "You already created this model repo", token)
        if token != TOKEN or asked["organization"] != "org":
            return self._refuse(403, None, "You don't have the rights to create a model under this namespace", token)
        self.hub.add(repo_id, {".gitattributes": b"*.safetensors filter=lfs\n"})
        self.hub.repositories[repo_id].private = asked.get("visibility") == "private" or asked.get("private") is True
        return self._json({"url": f"{self.hub.url}/{repo_id}", "name": repo_id})

    def _preupload(self, token: str, body: bytes, query: Any, repo_id: str, revision: str) -> None:
        if (files := self._writable(token, repo_id, revision, proposed="create_pr" in query)) is None:
            return
        found = []
        for asked in json.loads(body)["files"]:
            name = asked["path"]
            there = entry(name, files[name])["oid"] if name in files else None
            mode = "lfs" if name.endswith(LFS) else "regular"
            found.append({"path": name, "uploadMode": mode, "shouldIgnore": False, "oid": there})
        self._json({"files": found})

    def _batch(self, _token: str, body: bytes, _query: Any, _repo_id: str) -> None:
        objects = []
        for asked in json.loads(body)["objects"]:
            answer: dict[str, Any] = {"oid": asked["oid"], "size": asked["size"]}
            if asked["oid"] not in self.hub.objects:
                places = {"upload": asked["oid"], "verify": "verify"}
                answer["actions"] = {what: {"href": f"{self.hub.url}/lfs/{place}"} for what, place in places.items()}
            objects.append(answer)
        self._json({"transfer": "basic", "objects": objects})

    def _verify(self, _token: str, body: bytes, _query: Any) -> None:
        asked = json.loads(body)
        held = self.hub.objects.get(asked["oid"])
        self._send(200 if held is not None and len(held) == asked["size"] else 404)

    def _branch(self, token: str, _body: bytes, _query: Any, repo_id: str, branch: str) -> None:
        if self._writable(token, repo_id, "main") is None:
            return
        repository = self.hub.repositories[repo_id]
        repository.revisions[branch] = repository.revisions["main"]
        self._json({})

    def _commit(self, token: str, body: bytes, query: Any, repo_id: str, revision: str) -> None:
        proposed = "create_pr" in query
        self.hub.before_commit()
        if (files := self._writable(token, repo_id, revision, proposed=proposed)) is None:
            return None
        repository = self.hub.repositories[repo_id]
        header, *operations = (json.loads(line) for line in body.splitlines())
        parent = header["value"].get("parentCommit")
        if parent is not None and parent != repository.revisions[revision]:
            return self._refuse(412, None, "A commit has happened since. Please refresh and try again.", token)
        now = dict(files)
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "deletedFile":
                del now[value["path"]]
            elif operation["key"] == "lfsFile":
                now[value["path"]] = self.hub.objects[value["oid"]]
            else:
                now[value["path"]] = base64.b64decode(value["content"], validate=True)
        for name in self.hub.spoiling & {*now}:
            now[name] = now[name][:-1] + bytes([now[name][-1] ^ 1])
        number = sum(name.startswith("refs/pr/") for name in repository.revisions) + 1
        target = f"refs/pr/{number}" if proposed else revision
        commit = self._advance(repository, target, now)
        self.hub.messages.append((header["value"]["summary"], header["value"]["description"]))
        if self.hub.lost:
            self.hub.lost = False
            return self._break_off()
        answer = {"commitUrl": f"{self.hub.url}/{repo_id}/commit/{commit}", "commitOid": commit}
        if proposed:
            answer["pullRequestUrl"] = f"{self.hub.url}/{repo_id}/discussions/{number}"
        return self._json(answer)

    # -- within --------------------------------------------------------------------------------------------------------

    def _advance(self, repository: Repository, revision: str, files: dict[str, bytes]) -> str:
        before = repository.revisions.get(revision, "")
        digests = [[name, hashlib.sha256(data).hexdigest()] for name, data in files.items()]
        commit = hashlib.sha1(json.dumps([before, revision, digests]).encode()).hexdigest()
        repository.commits[commit] = files
        repository.revisions |= {revision: commit, commit: commit}
        return commit

    def _writable(self, token: str, repo_id: str, revision: str, *, proposed: bool = False) -> dict[str, bytes] | None:
        """Return what a revision holds if it may be written to, else refuse."""
        repository = self.hub.repositories.get(repo_id)
        if repository is None:
            self._refuse(404, "RepoNotFound", "Repository not found", token)
        elif revision not in repository.revisions:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}", token)
        elif token == READER or (not proposed and (token != TOKEN or not repo_id.startswith("org/"))):
            self._refuse(403, None, "Forbidden: you must have write access", token)
        else:
            return repository.commits[repository.revisions[revision]]
        return None

    def _refused(self, what: str, token: str | None) -> bool:
        if what not in self.hub.refusing:
            return False
        status, message, code = self.hub.refusing[what]
        self._refuse(status, code, message, token)
        return True


WritableHub.handler = WritableHandler
_ROUTES = (
    (r"/api/repos/create", "create"),
    (r"/api/models/(.+?)/preupload/([^/]+)", "preupload"),
    (r"/(.+?)\.git/info/lfs/objects/batch", "batch"),
    (r"/lfs/verify", "verify"),
    (r"/api/models/(.+?)/branch/([^/]+)", "branch"),
    (r"/api/models/(.+?)/commit/([^/]+)", "commit"),
)
LICENSES = {"apache-2.0", "mit", "cc-by-4.0", "cc-by-nc-4.0", "gpl-3.0", "llama3.1", "gemma", "other", "unknown"}


def writable_hub(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[WritableHub]:
    """Give a Hub that can be pushed to, with the token of who may, for a fixture."""
    server = WritableHub()
    with server:
        use_hub(monkeypatch, server, home)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        yield server
        close_session()
