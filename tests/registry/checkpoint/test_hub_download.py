"""Proves: of a repository of the Hub only a checkpoint is fetched, once and whole, and what goes wrong says what to do.

The repositories are of a server on this machine.
"""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, close_session, constants

from registry.calibration.corpus import SUFFIXES
from registry.checkpoint import COPIED_FILES
from registry.checkpoint.hub_download import HubReference, commit_of, fetch_repository, is_hub_reference
from registry.errors import CheckpointError, InvalidInputError, NotFoundError, RegError, StorageError
from tests.conftest import files_of
from tests.fake_hub import FakeHub, use_hub
from tests.registry.hub.refusals import check_told

MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights" * 100,
    "tokenizer.json": b"{}",
}
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
SHARDED = {
    "config.json": b"{}",
    "tokenizer.json": b'{"sharded": true}',
    "model.safetensors.index.json": json.dumps({"weight_map": dict(zip("ab", SHARDS, strict=True))}).encode(),
    SHARDS[0]: b"first" * 50,
    SHARDS[1]: b"second" * 50,
}
ADAPTER = {"adapter_config.json": b'{"peft_type": "LORA"}', "adapter_model.safetensors": b"low rank"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as server:
        use_hub(monkeypatch, server, tmp_path)
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        yield server
        close_session()


def fetch(text: str) -> Path:
    return fetch_repository(HubReference.parse(text))


def refused(kind: type[RegError], text: str, *parts: str) -> None:
    """Check that fetching `text` fails with an error that names it and says `parts`."""
    with pytest.raises(kind) as caught:
        fetch(text)
    check_told(caught.value, *parts, text.removeprefix("hf://").partition("@")[0])


@pytest.mark.parametrize(
    ("text", "repo_id", "revision"),
    [
        ("hf://org/name", "org/name", None),
        ("hf://org/name.v1_2-x@v1.0", "org/name.v1_2-x", "v1.0"),
        (f"hf://gpt2@{'a' * 40}", "gpt2", "a" * 40),
        ("hf://org/name@a@b", "org/name", "a@b"),
    ],
)
def test_references_are_read_and_written(text: str, repo_id: str, revision: str | None) -> None:
    reference = HubReference.parse(text)
    assert (reference.repo_id, reference.revision) == (repo_id, revision)
    assert str(reference) == text
    assert is_hub_reference(text)


@pytest.mark.parametrize("text", [
    "hf://", "hf:///name", "hf://org/", "hf://org/name/config.json", "hf://datasets/org/name", "hf://org/na me",
    "hf://org/../name", "hf://org/name..x", "hf://org/a--b", "hf://örg/name", "hf://org/name\n", "hf://org/name@",
    "hf://org/name@ main", "hf://org/name@main\n", "hf://org/name@../../x", "hf://org/name@a/../b",
    "hf://org/name@/etc/passwd", "hf://org/name@a//b", "hf://org/name@a/", "hf://org/name@a\\b", "hf://org/name@-x",
    "hf://org/name@\x1b[31m",
])  # fmt: skip
def test_malformed_references_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="expected hf://ORG/NAME") as caught:
        HubReference.parse(text)
    check_told(caught.value)


def test_paths_are_no_references_and_those_of_the_cache_have_a_commit() -> None:
    assert not any(map(is_hub_reference, ("org/name", "./hf://x", "/models/x", "")))
    commit = "0123456789abcdef" * 2 + "01234567"
    cache = Path("/home/me/.cache/huggingface/hub/models--org--name")
    assert commit_of(cache / "snapshots" / commit) == commit
    assert commit_of(cache / "snapshots" / commit / "config.json") == commit
    assert commit_of(cache / "snapshots" / "main") is None
    assert commit_of(Path("/models/snapshots") / commit) is None
    assert commit_of(Path("model")) is None


def test_every_revision_is_fetched_once(hub: FakeHub, capfd: pytest.CaptureFixture[str]) -> None:
    first = hub.add("org/model", MODEL)
    old = fetch("hf://org/model")
    assert files_of(old) == MODEL
    assert commit_of(old) == first
    assert hub.fetched() == sorted(MODEL)
    assert fetch("hf://org/model") == old
    assert hub.fetched() == []
    assert capfd.readouterr() == ("", "")  # no bars where there is no terminal
    second = hub.add("org/model", MODEL | {"model.safetensors": b"better"})
    folder = fetch("hf://org/model")
    assert commit_of(folder) == second
    assert files_of(folder)["model.safetensors"] == b"better"
    assert hub.fetched() == ["model.safetensors"]
    assert fetch(f"hf://org/model@{first}") == old
    for revision in ("v1.0", "refs/pr/3"):
        commit = hub.add("org/model", MODEL | {"model.safetensors": revision.encode()}, revision=revision)
        folder = fetch(f"hf://org/model@{revision}")
        assert commit_of(folder) == commit
        assert files_of(folder)["model.safetensors"] == revision.encode()
        assert fetch(f"hf://org/model@{commit}") == folder


def test_only_what_a_checkpoint_is_read_from_is_fetched(hub: FakeHub) -> None:
    wanted = MODEL | {name: name.encode() for name in COPIED_FILES} | {"statistics.safetensors": b"s"}
    wanted |= {f"calibration{suffix}": suffix.encode() for suffix in SUFFIXES}
    unwanted = (
        *("modeling.py", "calibration.py", "calibration.pkl", "chat_template.py", "tokenizer.py", "pytorch_model.bin"),
        *("tokenizer/tokenizer.json", "original/model.safetensors", "tokenizer\\x.json", "tokenizer\x1b.json"),
        *("model.pt", "consolidated.safetensors", "model.fp16.safetensors", "README.md"),
    )
    hub.add("org/model", wanted | dict.fromkeys(unwanted, b"import os"))
    assert files_of(fetch("hf://org/model")) == wanted
    assert hub.fetched() == sorted(wanted)


@pytest.mark.parametrize("beside", [{}, {"config.json": b"{}"}])
def test_an_adapter_is_fetched(hub: FakeHub, beside: dict[str, bytes]) -> None:
    hub.add("org/adapter", ADAPTER | beside | {"adapter_model.bin": b"pickle", "training_args.bin": b"pickle"})
    assert files_of(fetch("hf://org/adapter")) == ADAPTER | beside


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"config.json": b"{}", "pytorch_model.bin": b"p"}, "pickle files ('pytorch_model.bin'), which run code"),
        ({"adapter_config.json": b"{}", "adapter_model.bin": b"p"}, "pickle files ('adapter_model.bin'), which run"),
        ({"config.json": b"{}", "a/b.pth": b"p", "statistics.safetensors": b"s"}, "pickle files ('a/b.pth')"),
        ({"config.json": b"{}", "adapter_model.safetensors": b"w"}, "not whole: model.safetensors is missing"),
        ({"unet/config.json": b"{}", "model.safetensors": b"w"}, "neither config.json nor adapter_config.json"),
        ({}, "neither config.json nor adapter_config.json"),
    ],
)
def test_what_is_no_checkpoint_is_refused_before_anything_is_fetched(
    hub: FakeHub, files: dict[str, bytes], said: str
) -> None:
    hub.add("org/other", files)
    refused(CheckpointError, "hf://org/other", said)
    assert hub.fetched() == []


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (b"{", "hf://org/model/model.safetensors.index.json is not JSON"),
        (b"{}", "does not list safetensors files"),
        (b'{"weight_map": {"a": "pytorch_model.bin"}}', "does not list safetensors files"),
        (b'{"weight_map": {"a": "../model.safetensors"}}', "does not list safetensors files"),
        (b'{"weight_map": {"a": "model\\u001b.safetensors"}}', "does not list safetensors files"),
        (b'{"weight_map": {"a": "model-9.safetensors"}}', "model-9.safetensors is missing from the repository"),
    ],
)
def test_a_bad_index_is_refused_before_any_weight_is_fetched(hub: FakeHub, index: bytes, said: str) -> None:
    hub.add("org/model", SHARDED | {"model.safetensors.index.json": index})
    refused(CheckpointError, "hf://org/model", said)
    assert not [name for name in hub.fetched() if name.endswith(".safetensors")]


def test_a_small_file_that_is_large_is_refused_before_anything_is_fetched(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.checkpoint.hub_download.TOKENIZER_BYTES", 100)
    hub.add("org/model", MODEL | {"tokenizer.json": b" " * 101, "calibration.txt": b" " * 101})
    refused(CheckpointError, "hf://org/model", "tokenizer.json has 101 bytes, the limit is 100", "name another")
    assert hub.fetched() == []


@pytest.mark.parametrize("login", [False, True], ids=["environment", "login"])
def test_the_token_is_sent(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, login: bool) -> None:
    hub.tokens = {"hf_secret"}
    hub.add("org/mine", MODEL, private=True)
    refused(NotFoundError, "hf://org/mine", "shows no model", hub.url, "spelling", "hf auth login")
    if login:
        Path(constants.HF_TOKEN_PATH).write_text("hf_secret", encoding="utf-8")
    else:
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert files_of(fetch("hf://org/mine")) == MODEL
    assert {request.token for request in hub.requests if request.method == "GET" and request.file} == {"hf_secret"}
    refused(NotFoundError, "hf://org/mistyped", "shows no model", hub.url, "spelling")
    refused(NotFoundError, "hf://org/mine@v9", "no revision 'v9'", f"{hub.url}/org/mine/tree/main")


def test_a_gated_repository_says_where_its_terms_are(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/gated", MODEL, gated=True)
    hub.tokens = {"hf_secret"}
    refused(StorageError, "hf://org/gated", "gated", f"{hub.url}/org/gated", "hf auth login")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    refused(StorageError, "hf://org/gated", "gated", f"{hub.url}/org/gated", "hf auth login")
    hub.admitted = {"hf_secret"}
    assert files_of(fetch("hf://org/gated")) == MODEL


@pytest.mark.parametrize(("token", "parts"), [("hf_secret_old", ("HTTP 401", "hf auth login")), ("hf_secret\x01", ())])
def test_a_bad_token_is_not_shown(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, token: str, parts: tuple[str, ...]
) -> None:
    hub.add("org/model", MODEL)
    monkeypatch.setenv("HF_TOKEN", token)
    refused(StorageError, "hf://org/model", *parts)


@pytest.mark.parametrize("status", [500, 403, 404])
@pytest.mark.parametrize("what", ["GET api", "GET model.safetensors", "HEAD config.json"])
def test_what_the_hub_answers_is_told(hub: FakeHub, what: str, status: int) -> None:
    hub.add("org/model", MODEL)
    hub.failing = {what: status}
    refused(NotFoundError if status == 404 else StorageError, "hf://org/model", f"HTTP {status}", hub.url)


def test_what_is_no_hub_and_no_connection_are_told(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/model", MODEL)
    hub.page = b"<html>Welcome to the hotel's network"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url.replace("http://", "http://user:hf_secret@"))
    refused(StorageError, "hf://org/model", f"cannot be fetched from {hub.url}", "HF_ENDPOINT")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    refused(StorageError, "hf://org/model", "Connection refused", "HF_HUB_OFFLINE=1")


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ("disk full", "HF_HUB_CACHE")),
        (RuntimeError("hf_secret: IO error: No space left on device (os error 28)"), ("disk full", "HF_HUB_CACHE")),
        (PermissionError(errno.EACCES, "Permission denied", "/cache/x"), ("Permission denied: /cache/x",)),
        (ZeroDivisionError("hf_secret"), ("cannot be fetched", "ZeroDivisionError")),
    ],
)
def test_a_disk_that_refuses_is_told(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, error: Exception, parts: tuple[str, ...]
) -> None:
    def http_get(*args: Any, **options: Any) -> None:
        raise error

    hub.add("org/model", MODEL)
    monkeypatch.setattr("huggingface_hub.file_download.http_get", http_get)
    refused(StorageError, "hf://org/model", *parts)


def test_a_file_that_breaks_off_is_continued(hub: FakeHub) -> None:
    hub.add("org/model", MODEL)
    hub.cut = {"model.safetensors"}
    assert files_of(fetch("hf://org/model")) == MODEL
    assert hub.fetched().count("model.safetensors") == 2


def test_an_interrupted_fetch_of_shards_is_continued(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the index lists, and no other."""
    hub.add("org/model", SHARDED | {"model.safetensors": b"the same again", "model-extra.safetensors": b"x"})
    hub.failing = {f"GET {SHARDS[1]}": 500}
    refused(StorageError, "hf://org/model", "HTTP 500")
    hub.failing = {}
    hub.fetched()
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        refused(NotFoundError, "hf://org/model", f"{SHARDS[1]} is missing from its folder in the cache", "unset")
    assert hub.requests == []
    assert files_of(fetch("hf://org/model")) == SHARDED
    assert SHARDS[1] in hub.fetched()


def test_a_repository_that_moves_meanwhile_is_told(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    model_info = HfApi.model_info

    def model_info_then_push(*args: Any, **options: Any) -> Any:
        info = model_info(*args, **options)
        hub.add("org/model", MODEL | {"model.safetensors": b"newer"})
        return info

    commit = hub.add("org/model", MODEL)
    monkeypatch.setattr(HfApi, "model_info", model_info_then_push)
    refused(StorageError, "hf://org/model", f"expected commit {commit}", "type the command again")
    assert files_of(fetch("hf://org/model"))["model.safetensors"] == b"newer"


def test_offline_the_cache_is_used_and_what_is_missing_named(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.add("org/model", MODEL)
    folder = fetch("hf://org/model")
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch("hf://org/model") == folder
    assert fetch(f"hf://org/model@{commit}") == folder
    refused(NotFoundError, "hf://org/model@v2", "not in the cache", "unset HF_HUB_OFFLINE")
    refused(NotFoundError, "hf://org/unseen", "not in the cache", str(constants.HF_HUB_CACHE))
    for name in MODEL:
        blob = (folder / name).resolve()
        blob.rename(blob.with_name("away"))
        missing = f"{name} is missing from its folder in the cache"
        refused(NotFoundError, "hf://org/model", missing, "unset HF_HUB_OFFLINE")
        blob.with_name("away").rename(blob)
    assert hub.requests == []


@pytest.mark.check
def test_the_environment_is_honoured(hub: FakeHub, tmp_path: Path) -> None:
    hub.tokens = {"hf_secret"}
    hub.add("org/mine", MODEL, private=True)
    program = (
        "import sys; from registry.checkpoint.hub_download import *\n"
        "loaded = {'torch', 'transformers', 'huggingface_hub'} & sys.modules.keys()\n"
        "print(loaded or fetch_repository(HubReference.parse('hf://org/mine')))"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_secret"}
    for offline in ("0", "1"):
        environment["HF_HUB_OFFLINE"] = offline
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert Path(done.stdout.strip()).is_relative_to(tmp_path / "home" / "hub" / "models--org--mine")
        assert files_of(Path(done.stdout.strip())) == MODEL
        assert done.stderr == ""
