"""Repositories of the Hub, from a server on this machine."""

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
        yield server
        close_session()


def fetch(text: str) -> Path:
    return fetch_repository(HubReference.parse(text))


def refusal(kind: type[RegError], text: str, *parts: str) -> RegError:
    """Return the error of fetching `text`, which says `parts` and no token."""
    with pytest.raises(kind) as caught:
        fetch(text)
    error = caught.value
    told = f"{error.message} | {error.hint}"
    assert error.hint
    assert told.isprintable()
    assert "hf_secret" not in told
    for part in (*parts, text.removeprefix("hf://").partition("@")[0]):
        assert part in told
    return error


@pytest.mark.parametrize(
    ("text", "repo_id", "revision"),
    [
        ("hf://org/name", "org/name", None),
        ("hf://gpt2", "gpt2", None),
        ("hf://org/name.v1_2-x@v1.0", "org/name.v1_2-x", "v1.0"),
        ("hf://org/name@refs/pr/3", "org/name", "refs/pr/3"),
        (f"hf://gpt2@{'a' * 40}", "gpt2", "a" * 40),
        ("hf://org/name@a@b", "org/name", "a@b"),
    ],
)
def test_references_are_read_and_written(text: str, repo_id: str, revision: str | None) -> None:
    reference = HubReference.parse(text)
    assert (reference.repo_id, reference.revision) == (repo_id, revision)
    assert str(reference) == text
    assert is_hub_reference(text)


@pytest.mark.parametrize(
    "text",
    [
        "hf://",
        "hf:///name",
        "hf://org/",
        "hf://org/name/config.json",
        "hf://datasets/org/name",
        "hf://org/na me",
        "hf://org/../name",
        "hf://org/name..x",
        "hf://org/a--b",
        "hf://örg/name",
        "hf://org/name\n",
        "hf://org/name@",
        "hf://org/name@ main",
        "hf://org/name@main\n",
        "hf://org/name@../../x",
        "hf://org/name@a/../b",
        "hf://org/name@/etc/passwd",
        "hf://org/name@a//b",
        "hf://org/name@a/",
        "hf://org/name@a\\b",
        "hf://org/name@-x",
        "hf://org/name@\x1b[31m",
    ],
)
def test_malformed_references_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="expected hf://ORG/NAME") as caught:
        HubReference.parse(text)
    assert caught.value.message.isprintable()
    assert caught.value.hint


def test_folders_are_no_references() -> None:
    assert not any(map(is_hub_reference, ("org/name", "./hf://x", "/models/x", "")))


def test_a_repository_is_fetched_once(hub: FakeHub, capfd: pytest.CaptureFixture[str]) -> None:
    commit = hub.add("org/model", MODEL)
    folder = fetch("hf://org/model")
    assert files_of(folder) == MODEL
    assert commit_of(folder) == commit
    assert hub.fetched() == sorted(MODEL)
    assert fetch("hf://org/model") == folder
    assert hub.fetched() == []
    assert capfd.readouterr() == ("", "")  # no bars where there is no terminal


def test_what_changed_is_fetched_anew(hub: FakeHub) -> None:
    first = hub.add("org/model", MODEL)
    old = fetch("hf://org/model")
    hub.fetched()
    second = hub.add("org/model", MODEL | {"model.safetensors": b"better"})
    folder = fetch("hf://org/model")
    assert commit_of(folder) == second
    assert files_of(folder)["model.safetensors"] == b"better"
    assert hub.fetched() == ["model.safetensors"]
    assert fetch(f"hf://org/model@{first}") == old


@pytest.mark.parametrize("revision", ["v1.0", "refs/pr/3"])
def test_a_revision_is_fetched(hub: FakeHub, revision: str) -> None:
    hub.add("gpt2", MODEL)
    commit = hub.add("gpt2", MODEL | {"model.safetensors": b"other"}, revision=revision)
    folder = fetch(f"hf://gpt2@{revision}")
    assert commit_of(folder) == commit
    assert (folder / "model.safetensors").read_bytes() == b"other"
    assert fetch(f"hf://gpt2@{commit}") == folder


def test_only_what_a_checkpoint_is_read_from_is_fetched(hub: FakeHub) -> None:
    wanted = MODEL | {name: name.encode() for name in COPIED_FILES} | {"statistics.safetensors": b"s"}
    wanted |= {f"calibration{suffix}": suffix.encode() for suffix in SUFFIXES}
    unwanted = (
        "modeling.py",
        "calibration.py",
        "calibration.pkl",
        "chat_template.py",
        "tokenizer.py",
        "tokenizer/tokenizer.json",
        "original/model.safetensors",
        "tokenizer\\x.json",
        "tokenizer\x1b.json",
        "pytorch_model.bin",
        "model.pt",
        "consolidated.safetensors",
        "model.fp16.safetensors",
        "README.md",
    )
    hub.add("org/model", wanted | dict.fromkeys(unwanted, b"import os"))
    assert files_of(fetch("hf://org/model")) == wanted
    assert hub.fetched() == sorted(wanted)


def test_a_sharded_model_is_fetched_by_its_index(hub: FakeHub) -> None:
    hub.add("org/model", SHARDED | {"model.safetensors": b"the same again", "model-extra.safetensors": b"x"})
    assert files_of(fetch("hf://org/model")) == SHARDED


@pytest.mark.parametrize("beside", [{}, {"config.json": b"{}"}])
def test_an_adapter_is_fetched(hub: FakeHub, beside: dict[str, bytes]) -> None:
    hub.add("org/adapter", ADAPTER | beside | {"adapter_model.bin": b"pickle", "training_args.bin": b"pickle"})
    assert files_of(fetch("hf://org/adapter")) == ADAPTER | beside


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        ({"config.json": b"{}", "pytorch_model.bin": b"pickle"}, ("pickle files ('pytorch_model.bin')", "never read")),
        (
            {"adapter_config.json": b"{}", "adapter_model.bin": b"p"},
            ("pickle files ('adapter_model.bin')", "never read"),
        ),
        ({"config.json": b"{}", "a/b.pth": b"p", "statistics.safetensors": b"s"}, ("pickle files ('a/b.pth')",)),
        ({"config.json": b"{}", "model.gguf": b"g"}, ("not whole: model.safetensors is missing",)),
        ({"model.safetensors": b"w"}, ("neither config.json nor adapter_config.json",)),
        ({"unet/config.json": b"{}"}, ("neither config.json nor adapter_config.json",)),
        ({"config.json": b"{}", "adapter_model.safetensors": b"w"}, ("model.safetensors is missing",)),
        ({}, ("neither config.json nor adapter_config.json",)),
    ],
)
def test_what_is_no_checkpoint_is_refused_before_anything_is_fetched(
    hub: FakeHub, files: dict[str, bytes], parts: tuple[str, ...]
) -> None:
    hub.add("org/other", files)
    refusal(CheckpointError, "hf://org/other", *parts)
    assert hub.fetched() == []


@pytest.mark.parametrize(
    ("index", "parts"),
    [
        (b"{", ("hf://org/model/model.safetensors.index.json is not JSON",)),
        (b"{}", ("does not list safetensors files",)),
        (b'{"weight_map": {"a": "pytorch_model.bin"}}', ("does not list safetensors files",)),
        (b'{"weight_map": {"a": "../model.safetensors"}}', ("does not list safetensors files",)),
        (b'{"weight_map": {"a": "model\\u001b.safetensors"}}', ("does not list safetensors files",)),
        (b'{"weight_map": {"a": "model-9.safetensors"}}', ("model-9.safetensors is missing from the repository",)),
    ],
)
def test_a_bad_index_is_refused_before_any_weight_is_fetched(
    hub: FakeHub, index: bytes, parts: tuple[str, ...]
) -> None:
    hub.add("org/model", SHARDED | {"model.safetensors.index.json": index})
    refusal(CheckpointError, "hf://org/model", *parts)
    assert not [name for name in hub.fetched() if name.endswith(".safetensors")]


def test_a_small_file_that_is_large_is_refused_before_anything_is_fetched(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.checkpoint.hub_download.TOKENIZER_BYTES", 100)
    hub.add("org/model", MODEL | {"tokenizer.json": b" " * 101, "calibration.txt": b" " * 101})
    refusal(CheckpointError, "hf://org/model", "tokenizer.json has 101 bytes, the limit is 100", "name another")
    assert hub.fetched() == []


def test_the_token_is_sent(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.tokens = {"hf_secret"}
    hub.add("org/mine", MODEL, private=True)
    refusal(NotFoundError, "hf://org/mine", "shows no model", "spelling", "hf auth login")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert files_of(fetch("hf://org/mine")) == MODEL
    assert {request.token for request in hub.requests if request.method == "GET" and request.file} == {"hf_secret"}


def test_the_token_of_a_login_is_sent(hub: FakeHub) -> None:
    hub.tokens = {"hf_secret"}
    hub.add("org/mine", MODEL, private=True)
    Path(constants.HF_TOKEN_PATH).write_text("hf_secret", encoding="utf-8")
    assert files_of(fetch("hf://org/mine")) == MODEL


@pytest.mark.parametrize("token", [None, "hf_secret"])
def test_a_gated_repository_says_where_its_terms_are(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    hub.add("org/gated", MODEL, gated=True)
    hub.tokens = {"hf_secret"}
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    refusal(StorageError, "hf://org/gated", "gated", f"{hub.url}/org/gated", "hf auth login")
    hub.admitted = {"hf_secret"}
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert files_of(fetch("hf://org/gated")) == MODEL


@pytest.mark.parametrize(("token", "parts"), [("hf_secret_old", ("HTTP 401", "hf auth login")), ("hf_secret\x01", ())])
def test_a_bad_token_is_not_shown(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, token: str, parts: tuple[str, ...]
) -> None:
    hub.add("org/model", MODEL)
    monkeypatch.setenv("HF_TOKEN", token)
    refusal(StorageError, "hf://org/model", *parts)


@pytest.mark.parametrize("token", [None, "hf_secret"])
def test_a_repository_that_is_not_there(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    hub.tokens = {"hf_secret"}
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    refusal(NotFoundError, "hf://org/mistyped", hub.url, "spelling")


def test_a_revision_that_is_not_there(hub: FakeHub) -> None:
    hub.add("org/model", MODEL)
    refusal(NotFoundError, "hf://org/model@v9", "no revision 'v9'", f"{hub.url}/org/model/tree/main")


@pytest.mark.parametrize("status", [500, 403, 404])
@pytest.mark.parametrize("what", ["GET api", "GET model.safetensors", "HEAD config.json"])
def test_what_the_hub_answers_is_told(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, what: str, status: int) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.add("org/model", MODEL)
    hub.failing = {what: status}
    refusal(NotFoundError if status == 404 else StorageError, "hf://org/model", f"HTTP {status}", hub.url)


def test_what_is_no_hub_is_told(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/model", MODEL)
    hub.page = b"<html>Welcome to the hotel's network"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url.replace("http://", "http://user:hf_secret@"))
    refusal(StorageError, "hf://org/model", f"cannot be fetched from {hub.url}", "HF_ENDPOINT")


def test_no_connection_is_told(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    refusal(StorageError, "hf://org/model", "Connection refused", "HF_HUB_OFFLINE=1")


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
    refusal(StorageError, "hf://org/model", *parts)


def test_a_file_that_breaks_off_is_continued(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.add("org/model", MODEL)
    hub.cut = {"model.safetensors"}
    assert files_of(fetch("hf://org/model")) == MODEL
    assert hub.fetched().count("model.safetensors") == 2


def test_an_interrupted_fetch_is_continued(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/model", SHARDED)
    hub.failing = {f"GET {SHARDS[1]}": 500}
    refusal(StorageError, "hf://org/model", "HTTP 500")
    hub.failing = {}
    hub.fetched()
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        refusal(NotFoundError, "hf://org/model", f"{SHARDS[1]} is missing from its folder in the cache", "unset")
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
    refusal(StorageError, "hf://org/model", f"expected commit {commit}", "type the command again")
    assert files_of(fetch("hf://org/model"))["model.safetensors"] == b"newer"


def test_offline_the_cache_is_used(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.add("org/model", MODEL)
    folder = fetch("hf://org/model")
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch("hf://org/model") == folder
    assert fetch(f"hf://org/model@{commit}") == folder
    refusal(NotFoundError, "hf://org/model@v2", "not in the cache", "unset HF_HUB_OFFLINE")
    refusal(NotFoundError, "hf://org/unseen", "not in the cache", str(constants.HF_HUB_CACHE))
    assert hub.requests == []


@pytest.mark.parametrize("name", sorted(MODEL))
def test_offline_what_is_missing_is_named(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    hub.add("org/model", MODEL)
    folder = fetch("hf://org/model")
    (folder / name).resolve().unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refusal(NotFoundError, "hf://org/model", f"{name} is missing from its folder in the cache", "unset HF_HUB_OFFLINE")


def test_the_commit_of_a_path() -> None:
    commit = "0123456789abcdef" * 2 + "01234567"
    cache = Path("/home/me/.cache/huggingface/hub/models--org--name")
    assert commit_of(cache / "snapshots" / commit) == commit
    assert commit_of(cache / "snapshots" / commit / "config.json") == commit
    assert commit_of(cache / "snapshots" / "main") is None
    assert commit_of(Path("/models/snapshots") / commit) is None
    assert commit_of(Path("model")) is None


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
