"""Proves: an expert that was pushed is registered from the Hub elsewhere without data, to the same digests."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from safetensors.torch import load

from registry import PassSettings, Recipe, Registry
from registry.errors import CheckpointError, ConflictError, RegError, SignatureError
from registry.hub.target import Target
from tests.conftest import SETTINGS, Zoo, files_of
from tests.remarks import Remarks
from tests.writable_hub import WritableHub


@contextmanager
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str = "elsewhere") -> Iterator[Registry]:
    """Give a registry on a machine where no model can be run, so that no statistics can be taken."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a forward pass")

    with monkeypatch.context() as patch, Registry(tmp_path / name) as opened:
        patch.setattr("registry.statistics.collect.load_for_pass", refuse)
        patch.setattr("registry.runtime.loading.load_model", refuse)
        yield opened


def links(registry: Registry, ref: str) -> set[tuple[str, str, str]]:
    return {(link.role, link.name, link.digest) for link in registry.arrays_of(registry.resolve(ref))}


@pytest.mark.check
def test_an_expert_has_the_digests_that_it_had_at_home(
    registry: Registry, zoo: Zoo, hub: WritableHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, settings = ("code", "math"), PassSettings(tokens=128, seq_len=32, batch_size=4)
    for name in names:
        registry.add_expert(
            name,
            zoo.experts[name],
            data=[zoo.train[name]] if name == "code" else (),
            settings=settings,
            license="apache-2.0",
            tags={"language": "en"},
            keep_calibration=False,
        )
        assert registry.push_expert(name, f"org/{name}", calibration=True).added
    with elsewhere(tmp_path, monkeypatch) as other:
        for name in names:
            home = registry.resolve(name)
            registration = other.add_expert(name, f"hf://org/{name}")
            assert registration.version.digest == home.digest
            assert registration.version.content == home.content
            assert registration.version.statistics == home.statistics
            assert links(other, name) == links(registry, name)
            commit = hub.repositories[f"org/{name}"].revisions["main"]
            assert registration.version.tags == {"language": "en", "hub": f"org/{name}@{commit}"}
            assert not other.add_expert(name, f"hf://org/{name}").added
        for registered, folder in ((registry, "here"), (other, "there")):
            registered.compose(names, tmp_path / folder, Recipe(trunk="mean", router="ridge"))
        assert files_of(tmp_path / "here") == files_of(tmp_path / "there")
        assert other.verify().problems == ()
    card = ModelCard(hub.files("org/math")["README.md"].decode())
    card.validate()
    data: Any = card.data
    assert (data.license, data.language) == ("apache-2.0", ["en"])
    assert registry.resolve("math").digest in card.text
    assert "hf://org/math" in card.text


@pytest.mark.check
@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
def test_who_signed_an_expert_is_told_and_can_be_asked_for(
    filled: Registry, hub: WritableHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signers = {name: tmp_path / f"{name}.allowed" for name in ("ada", "eve")}
    for name, allowed in signers.items():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
        allowed.write_text(f"{name}@example.org {(tmp_path / f'{name}.pub').read_text()}")
    filled.push_expert("math", "org/plain", calibration=True)
    filled.push_expert("math", "org/math", calibration=True, sign=tmp_path / "ada")
    assert not filled.push_expert("math", "org/math", calibration=True, sign=tmp_path / "ada").added
    files = hub.files("org/math")
    assert files.keys() == {*hub.files("org/plain"), "expert.json.sig"}
    for name, signature in {"noise": bytes(range(256)), "empty": b"", "other": files["expert.json.sig"][:-40]}.items():
        hub.add(f"org/{name}", files | {"expert.json.sig": signature})
    hub.add("org/large", files | {"expert.json.sig": bytes(2**20 + 1)})
    hub.add("org/bundle", hub.files("org/plain") | {"model.sig": b"noise"})
    with elsewhere(tmp_path, monkeypatch) as other:
        other.progress = told = Remarks()
        for repo, by, why in (
            ("plain", "ada", "hf://org/plain is not signed: it has no expert.json.sig"),
            ("bundle", "ada", "hf://org/bundle is not signed"),
            ("math", "eve", "which .* does not allow"),
            ("noise", "ada", "is not a signature of"),
            ("empty", "ada", "is not a signature of"),
            ("other", "ada", "is not a signature of"),
            ("large", "ada", "more than 1,048,576 bytes"),
        ):
            with pytest.raises(RegError, match=why) as refused:
                other.add_expert("math", f"hf://org/{repo}", signers=signers[by])
            assert refused.value.hint
        with pytest.raises(SignatureError, match=r"ada@example\.org signed"):
            other.add_expert("math", "hf://org/math", signers=signers["ada"], license="mit")
        with pytest.raises(SignatureError, match="nosuch does not exist"):
            other.add_expert("math", "hf://org/none", signers=tmp_path / "nosuch")
        assert (other.versions(), list(other.arrays.digests())) == ([], [])
        assert "signer" not in other.add_expert("math", "hf://org/noise").version.tags
        assert other.add_expert("math", "hf://org/math", signers=signers["ada"]).version.tags["signer"] == (
            "ada@example.org"
        )
        other.add_expert("plain", "hf://org/plain")
        other.add_expert("bundle", "hf://org/bundle")
    assert "hf://org/noise: signed (expert.json.sig), which reg add-expert --signers FILE verifies" in told.text
    assert "hf://org/math: signed by ada@example.org, key SHA256:" in told.text
    assert "hf://org/plain: not signed" in told.text
    assert "hf://org/bundle: signed (model.sig), which model_signing verifies" in told.text


@pytest.mark.check
def test_kept_tokens_stay_at_home_unless_they_are_asked_for(
    filled: Registry, hub: WritableHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = filled.resolve("math")
    assert ("calibration", "ids") in {(role, name) for role, name, _ in links(filled, "math")}
    filled.progress = told = Remarks()
    filled.push_expert("math", "org/without")
    (said,) = [line for line in told.sentences if "calibration tokens" in line]
    assert "--calibration pushes them" in said
    announced = json.loads(hub.files("org/without")["expert.json"])
    assert announced["digest"] != home.digest
    assert not [name for name in load(hub.files("org/without")["statistics.safetensors"]) if "calibration" in name]
    filled.push_expert("math", "org/with", calibration=True)
    with elsewhere(tmp_path, monkeypatch) as other:
        without = other.add_expert("math", "hf://org/without").version
        assert without.digest == announced["digest"]
        expected = {link for link in links(filled, "math") if link[0] != "calibration"}
        assert links(other, "math") == expected
        assert other.add_expert("math", "hf://org/with").version.digest == home.digest
        assert links(other, "math") == links(filled, "math")


@pytest.mark.check(after=2)
@pytest.mark.parametrize(
    ("settings", "keep"),
    [
        (PassSettings(tokens=128, seq_len=32, sites="counts"), False),
        (PassSettings(tokens=64, seq_len=16, batch_size=4), True),
        (PassSettings(tokens=128, seq_len=32, sites="counts"), True),
        (PassSettings(tokens=128, seq_len=32, batch_size=4, sites="router"), False),
    ],
    ids=["counts", "own text", "counts and tokens", "routers"],
)
def test_whatever_was_collected_travels(
    settings: PassSettings,
    keep: bool,
    registry: Registry,
    bare: Path,
    zoo: Zoo,
    hub: WritableHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The text that an expert wrote itself goes along unasked."""
    own = settings.sites == "all"
    data = [] if own else [zoo.train["code"]]
    home = registry.add_expert("code", bare, data=data, settings=settings, keep_calibration=keep).version
    registry.push_expert("code", "org/code", calibration=keep and not own)
    if settings.sites == "counts":
        card = hub.files("org/code")["README.md"].decode()
        assert "| statistics | 128 tokens: token_counts |" in card
        assert "how often each token came in the calibration" in card
        assert "Gram" not in card
    with elsewhere(tmp_path, monkeypatch) as other:
        there = other.add_expert("code", "hf://org/code").version
        assert (there.digest, there.statistics) == (home.digest, home.statistics)
        assert links(other, "code") == links(registry, "code")


@pytest.mark.check
def test_another_expert_or_version_is_not_replaced_unasked(
    filled: Registry, zoo: Zoo, hub: WritableHub, tmp_path: Path
) -> None:
    filled.push_expert("math", "org/expert")
    with pytest.raises(ConflictError, match="another expert, math"):
        filled.push_expert("code", "org/expert")
    filled.add_expert("math", zoo.experts["math"], data=[zoo.train["math"]], settings=SETTINGS, license="mit")
    with pytest.raises(ConflictError, match="another version of math") as caught:
        filled.push_expert("math", "org/expert")
    assert "--force" in str(caught.value.hint)
    assert filled.push_expert("math@1", "org/expert").added is False
    filled.push_expert("math", Target("org/expert", force=True))
    assert json.loads(hub.files("org/expert")["expert.json"])["license"] == "mit"


@pytest.mark.check
def test_an_announcement_is_untrusted(
    filled: Registry, registry: Registry, hub: WritableHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.push_expert("math", "org/math", calibration=True)
    files = hub.files("org/math")
    for change in ({"format": 2}, {"digest": "x"}, {"license": "a b"}, {"name": "../x"}, {"more": 1}):
        document = json.loads(files["expert.json"]) | change
        hub.add("org/bad", files | {"expert.json": json.dumps(document).encode()})
        with elsewhere(tmp_path, monkeypatch) as other, pytest.raises(Exception) as caught:  # noqa: PT011
            other.add_expert("math", "hf://org/bad")
        assert isinstance(caught.value, CheckpointError | ValueError), change
    wrong = json.loads(files["expert.json"]) | {"digest": "0" * 64}
    hub.add("org/bad", files | {"expert.json": json.dumps(wrong).encode()})
    with elsewhere(tmp_path, monkeypatch) as other:
        other.progress = told = Remarks()
        registration = other.add_expert("math", "hf://org/bad")
    assert registration.version.digest == filled.resolve("math").digest
    assert "announces 000000000000, and is " in told.text
