"""Proves: whatever refuses a push gets its own message and next command, and says what is on the Hub then."""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from registry import Recipe, Registry
from registry.errors import ConflictError, DamagedError, InvalidInputError, NotFoundError, RegError, StorageError
from registry.hub import Pushed
from registry.hub.target import Target
from tests.conftest import files_of
from tests.registry.hub.refusals import check_told
from tests.remarks import Remarks
from tests.writable_hub import READER, STRANGER, WritableHub

OTHER = {"config.json": b"{}", "model.safetensors": b"somebody's"}


@pytest.fixture(scope="module")
def moe(_filled_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A composition of another registry that holds the same experts."""
    place = tmp_path_factory.mktemp("composed")
    with Registry(shutil.copytree(_filled_home, place / "home")) as registry:
        registry.compose(["code", "math"], place / "moe", Recipe(trunk="mean"))
    return place / "moe"


@dataclass(frozen=True)
class Push:
    """Pushing a composition of a registry."""

    registry: Registry
    moe: Path

    def __call__(self, target: Target | str) -> Pushed:
        return self.registry.push(self.moe, target, license="mit")

    def refused(self, kind: type[RegError], target: Target | str, *parts: str) -> None:
        """Check that pushing fails with an error that says `parts`."""
        with pytest.raises(kind) as caught:
            self(target)
        check_told(caught.value, *parts)


@pytest.fixture
def push(filled: Registry, moe: Path, hub: WritableHub) -> Push:
    return Push(filled, moe)


def test_without_a_token_nothing_is_asked(push: Push, hub: WritableHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    push.refused(StorageError, "org/moe", "there is no token", "hf auth login", "HF_TOKEN")
    assert hub.requests == []
    Path(constants.HF_TOKEN_PATH).parent.mkdir(parents=True, exist_ok=True)
    Path(constants.HF_TOKEN_PATH).write_text("hf_secret_writer", encoding="utf-8")  # as a login does
    assert push("org/moe").added


@pytest.mark.parametrize(
    ("token", "parts"),
    [
        ("hf_secret_old", ("does not accept the token", "HTTP 401", "nothing was sent", "hf auth login")),
        (READER, ("may only read", "hf auth login")),
        (STRANGER, ("may not write to hf://org/moe", "HTTP 403", "nothing was sent", "hf auth login")),
    ],
)
def test_a_token_without_rights_is_told(
    push: Push, hub: WritableHub, monkeypatch: pytest.MonkeyPatch, token: str, parts: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    push.refused(StorageError, "org/moe", *parts)
    assert hub.repositories == {}


def test_a_repository_of_somebody_else_is_not_written_to(
    push: Push, hub: WritableHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    push("org/moe")
    monkeypatch.setenv("HF_TOKEN", STRANGER)
    assert push("org/moe").added is False  # it is there already
    push.refused(StorageError, Target("org/moe", "new"), "may not write", "HTTP 403", "is unchanged")


def test_offline_nothing_is_asked_and_no_connection_is_told(
    push: Push, hub: WritableHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        push.refused(InvalidInputError, "org/moe", "HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE")
    assert hub.requests == []
    monkeypatch.setattr(constants, "ENDPOINT", "http://user:hf_secret@127.0.0.1:9")
    broke = "the connection to http://127.0.0.1:9 broke: Connection refused"
    push.refused(StorageError, "org/moe", broke, "nothing was sent", "HF_ENDPOINT")


def test_a_taken_name_is_left_alone(push: Push, hub: WritableHub) -> None:
    """What was made on the Hub's page is no other model."""
    hub.add("org/taken", OTHER)
    target = Target("org/taken", force=True)  # which replaces only what this program pushed
    push.refused(ConflictError, target, "is taken: it holds config.json, model.safetensors", "another name")
    assert hub.files("org/taken") == OTHER
    hub.add("org/blank", {".gitattributes": b"", "README.md": b"---\nlicense: mit\n---\n"})
    assert push("org/blank").added
    assert hub.files("org/blank").keys() == files_of(push.moe).keys()
    hub.refusing = {"POST create": (409, "You already created this model repo", None)}
    push.refused(ConflictError, "org/hidden", "taken, by a repository that this account is not shown")


@pytest.mark.check
def test_another_composition_is_replaced_only_when_asked(push: Push, hub: WritableHub, tmp_path: Path) -> None:
    first, other = push("org/moe"), Push(push.registry, tmp_path / "other")
    push.registry.compose(["code", "law"], other.moe, Recipe(host="remote-code"))
    other.refused(ConflictError, "org/moe", "another composition", "is unchanged", "--force")
    second = other(Target("org/moe", force=True))
    assert hub.files("org/moe").keys() == files_of(other.moe).keys()
    push(Target("org/moe", force=True))
    assert hub.files("org/moe").keys() == files_of(push.moe).keys()  # the modelling file went
    assert {first.commit, second.commit} <= hub.repositories["org/moe"].commits.keys()


def test_branches_and_revisions(push: Push, hub: WritableHub) -> None:
    pushed = push(Target("org/moe", "v1"))
    assert (pushed.revision, pushed.url) == ("v1", f"{hub.url}/org/moe/tree/v1")
    assert hub.files("org/moe", "v1").keys() == files_of(push.moe).keys()
    assert hub.files("org/moe") == {}
    assert push(Target("org/moe", "v1")).added is False
    for revision in ("refs/pr/7", "0" * 40):
        parts = (f"no revision {revision!r}", "is unchanged", "/tree/main")
        push.refused(NotFoundError, Target("org/moe", revision), *parts)


def test_a_pull_request(push: Push, hub: WritableHub, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target("org/theirs", create_pr=True)
    push.refused(NotFoundError, target, "no repository org/theirs to propose a change to", "--create-pr")
    hub.add("org/theirs", OTHER)
    monkeypatch.setenv("HF_TOKEN", STRANGER)
    pushed = push(target)
    assert (pushed.revision, pushed.url) == ("refs/pr/1", f"{hub.url}/org/theirs/discussions/1")
    assert hub.files("org/theirs") == OTHER
    assert hub.files("org/theirs", "refs/pr/1").keys() == files_of(push.moe).keys()


def test_private_is_what_it_says(push: Push, hub: WritableHub) -> None:
    push(Target("org/mine", private=True))
    assert hub.repositories["org/mine"].private
    assert push(Target("org/mine", private=True)).added is False
    push("org/open")
    assert not hub.repositories["org/open"].private
    push.refused(ConflictError, Target("org/open", private=True), "exists and is public", "/org/open/settings")


def test_a_gated_repository_is_told(push: Push, hub: WritableHub) -> None:
    push("org/moe")
    hub.repositories["org/moe"].gated = True
    head = hub.repositories["org/moe"].revisions["main"]
    hub.repositories["org/moe"].commits[head]["more.txt"] = b"x"  # so that its document has to be read
    terms = (f"{hub.url}/org/moe", "is gated", "accept its terms", "is unchanged")
    push.refused(StorageError, Target("org/moe", force=True), *terms)


DOWN = (500, "Internal Error", None)


@pytest.mark.check(after=3)
@pytest.mark.parametrize(
    ("what", "answer", "parts"),
    [
        ("POST create", DOWN, ("fails on", "HTTP 500", "wait a minute")),
        ("POST preupload", DOWN, ("fails on", "HTTP 500")),
        ("POST commit", DOWN, ("fails on", "HTTP 500")),
        ("POST batch", DOWN, ("fails on", "HTTP 500")),
        ("POST commit", (429, "Too many", None), ("limits the rate of requests", "HTTP 429", "wait some minutes")),
        ("POST batch", (403, "Private repository storage limit reached", None), ("no room left", "quota", "HTTP 403")),
        ("POST preupload", (402, "Payment required", None), ("no room left", "HTTP 402")),
        ("POST commit", (403, "Forbidden", None), ("may not write", "HTTP 403", "hf auth login")),
        ("POST preupload", (403, "Gated", "GatedRepo"), ("is gated", "accept its terms")),
    ],
)
def test_what_the_hub_answers_is_told(
    push: Push, hub: WritableHub, what: str, answer: tuple[int, str, str | None], parts: tuple[str, ...]
) -> None:
    hub.refusing = {what: answer}
    state = "nothing was sent" if what == "POST create" else "was created and holds no model yet"
    push.refused(StorageError, "org/moe", *parts, state)
    assert ("org/moe" in hub.repositories) is (what != "POST create")
    hub.refusing = {}
    assert push("org/moe").added


def test_a_card_that_the_hub_does_not_accept_is_told_before_anything_large_is_sent(
    push: Push, hub: WritableHub
) -> None:
    with pytest.raises(RegError, match='does not accept the metadata of the card: "license" must be one of') as caught:
        push.registry.push(push.moe, "org/moe", license="my-own")
    assert "--license" in str(caught.value.hint)
    assert (hub.uploads, hub.repositories) == ([], {})


def test_an_interrupted_upload_goes_on(filled: Registry, hub: WritableHub) -> None:
    filled.push_expert("code", "org/code", calibration=True)  # two large files
    sizes = {name: len(data) for name, data in hub.files("org/code").items() if name.endswith(".safetensors")}
    oids = {hashlib.sha256(hub.files("org/code")[name]).hexdigest(): name for name in sizes}
    large = next(oid for oid, name in oids.items() if name == "model.safetensors")
    for kept in (hub.objects, hub.repositories, hub.uploads):
        kept.clear()
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


def test_a_lost_answer_to_the_commit_is_found_out(push: Push, hub: WritableHub) -> None:
    hub.lost = True
    assert push("org/moe").commit == hub.repositories["org/moe"].revisions["main"]
    assert len(hub.messages) == 1


def test_somebody_who_pushes_meanwhile_is_not_overwritten(push: Push, hub: WritableHub) -> None:
    theirs = {"other.bin": b"theirs"}

    def push_meanwhile() -> None:
        hub.before_commit = lambda: None
        hub.add("org/moe", theirs)

    hub.before_commit = push_meanwhile
    push.refused(ConflictError, "org/moe", "another push changed", "in the meantime")
    assert hub.files("org/moe") == theirs


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_what_did_not_arrive_as_it_was_is_told(push: Push, hub: WritableHub, name: str) -> None:
    hub.spoiling = {name}
    push.refused(DamagedError, "org/moe", f"{name} is not as sent", "undo that commit")


def test_an_interruption_says_what_is_there(push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    push.registry.progress = told = Remarks()
    monkeypatch.setattr("huggingface_hub._commit_api._upload_lfs_files", interrupted)
    with pytest.raises(KeyboardInterrupt):
        push("org/moe")
    assert "interrupted: org/moe was created and holds no model yet" in told.text
    assert "type the command again" in told.text
