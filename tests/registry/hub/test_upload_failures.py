"""Proves: whatever refuses a push gets its own message and next command, and says what is on the Hub then."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from registry import Recipe, Registry
from registry.errors import ConflictError, DamagedError, InvalidInputError, NotFoundError, RegError, StorageError
from registry.hub.target import Target
from tests.conftest import files_of
from tests.writable_hub import READER, STRANGER, WritableHub

OTHER = {"config.json": b"{}", "model.safetensors": b"somebody's"}


@pytest.fixture(scope="module")
def moe(_filled_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A composition of another registry that holds the same experts."""
    place = tmp_path_factory.mktemp("composed")
    with Registry(shutil.copytree(_filled_home, place / "home")) as registry:
        registry.compose(["code", "math"], place / "moe", Recipe(trunk="mean"))
    return place / "moe"


def refusal(kind: type[RegError], registry: Registry, moe: Path, target: Target | str, *parts: str) -> RegError:
    """Return the error of pushing, which says `parts`, has a hint, and shows no token."""
    with pytest.raises(kind) as caught:
        registry.push(moe, target, license="mit")
    error = caught.value
    told = f"{error.message} | {error.hint}"
    assert error.hint
    assert told.isprintable()
    assert "hf_secret" not in told
    for part in parts:
        assert part in told, told
    return error


def test_without_a_token_nothing_is_asked(
    filled: Registry, moe: Path, hub: WritableHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    refusal(StorageError, filled, moe, "org/moe", "there is no token", "hf auth login", "HF_TOKEN")
    assert hub.requests == []


def test_the_token_of_a_login_is_taken(
    filled: Registry, moe: Path, hub: WritableHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    Path(constants.HF_TOKEN_PATH).parent.mkdir(parents=True, exist_ok=True)
    Path(constants.HF_TOKEN_PATH).write_text("hf_secret_writer", encoding="utf-8")
    assert filled.push(moe, "org/moe", license="mit").added


@pytest.mark.parametrize(
    ("token", "parts"),
    [
        ("hf_secret_old", ("does not accept the token", "HTTP 401", "nothing was sent", "hf auth login")),
        (READER, ("may only read", "hf auth login")),
        (STRANGER, ("may not write to hf://org/moe", "HTTP 403", "nothing was sent", "hf auth login")),
    ],
)
def test_a_token_without_rights_is_told(
    filled: Registry, moe: Path, hub: WritableHub, monkeypatch: pytest.MonkeyPatch, token: str, parts: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    refusal(StorageError, filled, moe, "org/moe", *parts)
    assert hub.repositories == {}


def test_a_repository_of_somebody_else_is_not_written_to(
    filled: Registry, moe: Path, hub: WritableHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.push(moe, "org/moe", license="mit")
    monkeypatch.setenv("HF_TOKEN", STRANGER)
    assert filled.push(moe, "org/moe", license="mit").added is False  # it is there already
    refusal(StorageError, filled, moe, Target("org/moe", "new"), "may not write", "HTTP 403", "is unchanged")


def test_offline_nothing_is_asked(
    filled: Registry, moe: Path, hub: WritableHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refusal(InvalidInputError, filled, moe, "org/moe", "HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE")
    assert hub.requests == []


def test_a_taken_name_is_left_alone(filled: Registry, moe: Path, hub: WritableHub) -> None:
    hub.add("org/taken", OTHER)
    target = Target("org/taken", force=True)  # which replaces only what this program pushed
    refusal(ConflictError, filled, moe, target, "is taken: it holds config.json, model.safetensors", "another name")
    assert hub.files("org/taken") == OTHER
    hub.refusing = {"POST create": (409, "You already created this model repo", None)}
    refusal(ConflictError, filled, moe, "org/hidden", "taken, by a repository that this account is not shown")


def test_what_was_made_on_the_page_is_no_other_model(filled: Registry, moe: Path, hub: WritableHub) -> None:
    hub.add("org/blank", {".gitattributes": b"", "README.md": b"---\nlicense: mit\n---\n"})
    assert filled.push(moe, "org/blank", license="mit").added
    assert hub.files("org/blank").keys() == files_of(moe).keys()


@pytest.mark.check
def test_another_composition_is_replaced_only_when_asked(
    filled: Registry, moe: Path, hub: WritableHub, tmp_path: Path
) -> None:
    first = filled.push(moe, "org/moe", license="mit")
    filled.compose(["code", "law"], tmp_path / "other", Recipe(host="remote-code"))
    other = tmp_path / "other"
    refusal(ConflictError, filled, other, "org/moe", "another composition", "is unchanged", "--force")
    second = filled.push(other, Target("org/moe", force=True), license="mit")
    assert hub.files("org/moe").keys() == files_of(other).keys()
    filled.push(moe, Target("org/moe", force=True), license="mit")
    assert hub.files("org/moe").keys() == files_of(moe).keys()  # the modelling file went
    repository = hub.repositories["org/moe"]
    assert {first.commit, second.commit} <= repository.commits.keys()


def test_branches_and_revisions(filled: Registry, moe: Path, hub: WritableHub) -> None:
    pushed = filled.push(moe, Target("org/moe", "v1"), license="mit")
    assert (pushed.revision, pushed.url) == ("v1", f"{hub.url}/org/moe/tree/v1")
    assert hub.files("org/moe", "v1").keys() == files_of(moe).keys()
    assert hub.files("org/moe") == {}
    assert filled.push(moe, Target("org/moe", "v1"), license="mit").added is False
    for revision in ("refs/pr/7", "0" * 40):
        target = Target("org/moe", revision)
        refusal(NotFoundError, filled, moe, target, f"no revision {revision!r}", "is unchanged", "/tree/main")


def test_a_pull_request(filled: Registry, moe: Path, hub: WritableHub, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target("org/theirs", create_pr=True)
    refusal(NotFoundError, filled, moe, target, "no repository org/theirs to propose a change to", "--create-pr")
    hub.add("org/theirs", OTHER)
    monkeypatch.setenv("HF_TOKEN", STRANGER)
    pushed = filled.push(moe, target, license="mit")
    assert (pushed.revision, pushed.url) == ("refs/pr/1", f"{hub.url}/org/theirs/discussions/1")
    assert hub.files("org/theirs") == OTHER
    assert hub.files("org/theirs", "refs/pr/1").keys() == files_of(moe).keys()


def test_private_is_what_it_says(filled: Registry, moe: Path, hub: WritableHub) -> None:
    filled.push(moe, Target("org/mine", private=True), license="mit")
    assert hub.repositories["org/mine"].private
    assert filled.push(moe, Target("org/mine", private=True), license="mit").added is False
    filled.push(moe, "org/open", license="mit")
    assert not hub.repositories["org/open"].private
    target = Target("org/open", private=True)
    refusal(ConflictError, filled, moe, target, "exists and is public", "/org/open/settings")


def test_a_gated_repository_is_told(filled: Registry, moe: Path, hub: WritableHub) -> None:
    filled.push(moe, "org/moe", license="mit")
    hub.repositories["org/moe"].gated = True
    head = hub.repositories["org/moe"].revisions["main"]
    hub.repositories["org/moe"].commits[head]["more.txt"] = b"x"  # so that its document has to be read
    terms = (f"{hub.url}/org/moe", "is gated", "accept its terms", "is unchanged")
    refusal(StorageError, filled, moe, Target("org/moe", force=True), *terms)


@pytest.mark.check(after=3)
@pytest.mark.trust(after=7)
@pytest.mark.parametrize("what", ["POST create", "POST preupload", "POST batch", "POST commit"])
@pytest.mark.parametrize(
    ("answer", "kind", "parts"),
    [
        ((500, "Internal Error", None), StorageError, ("fails on", "HTTP 500", "wait a minute")),
        (
            (429, "Too many requests", None),
            StorageError,
            ("limits the rate of requests", "HTTP 429", "wait some minutes"),
        ),
        ((403, "Private repository storage limit reached", None), StorageError, ("no room left", "quota", "HTTP 403")),
        ((402, "Payment required", None), StorageError, ("no room left", "HTTP 402")),
        ((403, "Forbidden", None), StorageError, ("may not write", "HTTP 403", "hf auth login")),
        ((403, "Gated", "GatedRepo"), StorageError, ("is gated", "accept its terms")),
    ],
)
def test_what_the_hub_answers_is_told(
    filled: Registry,
    moe: Path,
    hub: WritableHub,
    what: str,
    answer: tuple[int, str, str | None],
    kind: type[RegError],
    parts: tuple[str, ...],
) -> None:
    hub.refusing = {what: answer}
    state = "nothing was sent" if what == "POST create" else "was created and holds no model yet"
    refusal(kind, filled, moe, "org/moe", *parts, state)
    assert ("org/moe" in hub.repositories) is (what != "POST create")
    hub.refusing = {}
    assert filled.push(moe, "org/moe", license="mit").added


def test_a_card_that_the_hub_does_not_accept_is_told_before_anything_large_is_sent(
    filled: Registry, moe: Path, hub: WritableHub
) -> None:
    with pytest.raises(RegError, match='does not accept the metadata of the card: "license" must be one of') as caught:
        filled.push(moe, "org/moe", license="my-own")
    assert "--license" in str(caught.value.hint)
    assert (hub.uploads, hub.repositories) == ([], {})


def test_an_interrupted_upload_goes_on(filled: Registry, hub: WritableHub, moe: Path, tmp_path: Path) -> None:
    filled.push_expert("code", "org/code", calibration=True)  # two large files
    sizes = {name: len(data) for name, data in hub.files("org/code").items() if name.endswith(".safetensors")}
    oids = {hashlib.sha256(hub.files("org/code")[name]).hexdigest(): name for name in sizes}
    large = next(oid for oid, name in oids.items() if name == "model.safetensors")
    hub.objects.clear()
    hub.repositories.clear()
    hub.uploads.clear()
    hub.breaking = {large}
    with pytest.raises(StorageError, match="the connection to") as caught:
        filled.push_expert("code", "org/code", calibration=True)
    assert "was created and holds no model yet; files that arrived are not sent again" in caught.value.message
    assert "type the command again" in str(caught.value.hint)
    assert hub.files("org/code") == {}
    arrived = {upload.oid for upload in hub.uploads if upload.nbytes == sizes[oids[upload.oid]]}
    assert arrived == set(oids) - {large}
    assert any(0 < upload.nbytes < sizes["model.safetensors"] for upload in hub.uploads if upload.oid == large)
    hub.uploads.clear()
    hub.breaking.clear()
    assert filled.push_expert("code", "org/code", calibration=True).added
    assert [upload.oid for upload in hub.uploads] == [large]  # only what was missing
    assert {name for name in hub.files("org/code") if name.endswith(".safetensors")} == sizes.keys()


def test_a_lost_answer_to_the_commit_is_found_out(filled: Registry, moe: Path, hub: WritableHub) -> None:
    hub.lost = True
    pushed = filled.push(moe, "org/moe", license="mit")
    assert pushed.commit == hub.repositories["org/moe"].revisions["main"]
    assert len(hub.messages) == 1


def test_somebody_who_pushes_meanwhile_is_not_overwritten(filled: Registry, moe: Path, hub: WritableHub) -> None:
    theirs = {"other.bin": b"theirs"}

    def push_meanwhile() -> None:
        hub.before_commit = lambda: None
        hub.add("org/moe", theirs)

    hub.before_commit = push_meanwhile
    refusal(ConflictError, filled, moe, "org/moe", "another push changed", "in the meantime")
    assert hub.files("org/moe") == theirs


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_what_did_not_arrive_as_it_was_is_told(filled: Registry, moe: Path, hub: WritableHub, name: str) -> None:
    hub.spoiling = {name}
    refusal(DamagedError, filled, moe, "org/moe", f"{name} is not as sent", "undo that commit")


def test_no_connection_is_told(filled: Registry, moe: Path, hub: WritableHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://user:hf_secret@127.0.0.1:9")
    parts = ("the connection to http://127.0.0.1:9 broke: Connection refused", "nothing was sent", "HF_ENDPOINT")
    refusal(StorageError, filled, moe, "org/moe", *parts)


def test_an_interruption_says_what_is_there(
    filled: Registry, moe: Path, hub: WritableHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from cli.output import bar

    def interrupted(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(filled, "progress", bar)
    monkeypatch.setattr("huggingface_hub._commit_api._upload_lfs_files", interrupted)
    with pytest.raises(KeyboardInterrupt):
        filled.push(moe, "org/moe", license="mit")
    told = capsys.readouterr().err
    assert "interrupted: org/moe was created and holds no model yet" in told
    assert "type the command again" in told
