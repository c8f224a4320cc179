"""Proves: a composed folder that was pushed and fetched back is the same as before to every command that takes one.

Fetched into a folder of its own it has the Hub's `.cache` and `.gitattributes`, in the Hub's cache it is made of links;
in both its card has what the push added. A folder with one changed byte is refused by all of them.
"""

from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from registry import Recipe, Registry, TestSettings, TrainSettings
from registry.composition.manifest import ComposedFolder
from registry.errors import CheckpointError
from registry.progress import silent
from tests.conftest import Zoo, files_of
from tests.writable_hub import WritableHub

SETTINGS = TestSettings(windows=1, seq_len=32, batch_size=2)
TRAINING = TrainSettings(steps=1, batch_size=2, seq_len=32)


@pytest.fixture
def pushed(registry: Registry, zoo: Zoo, hub: WritableHub, tmp_path: Path) -> Registry:
    """A registry with a composition in `moe`, which was pushed to `org/moe`."""
    for name in ("code", "math"):
        registry.add_expert(name, zoo.experts[name], license="mit")
    registry.compose(["code", "math"], tmp_path / "moe", Recipe(trunk="mean", router="ridge"))
    registry.push(tmp_path / "moe", "org/moe")
    assert hub.files("org/moe")["README.md"] != (tmp_path / "moe" / "README.md").read_bytes()
    return registry


def fetched(to: Path, *, cached: bool = False) -> Path:
    if cached:
        return Path(snapshot_download("org/moe", cache_dir=to))
    return Path(snapshot_download("org/moe", local_dir=to))


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("cached", [False, True], ids=["folder", "cache"])
def test_every_command_takes_a_fetched_folder_as_the_composed_one(
    pushed: Registry, zoo: Zoo, tmp_path: Path, cached: bool
) -> None:
    back, data = fetched(tmp_path / "back", cached=cached), {"code": [zoo.test["code"]]}
    assert any(path.name == ".cache" for path in back.iterdir()) is not cached
    assert list(ComposedFolder.read(back).problems(silent)) == []
    assert pushed.reproduce(back).is_same

    (scored,) = pushed.evaluate([back], data, SETTINGS)
    (made,) = pushed.compositions()
    (stored,) = pushed.evaluations(made)
    assert stored.document["figures"] == scored.document()

    for parent, out in ((tmp_path / "moe", "one"), (back, "two")):
        pushed.train_router(parent, tmp_path / out, [str(zoo.train["code"])], TRAINING)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert "reg push" not in (tmp_path / "two" / "README.md").read_text()

    reports = [pushed.report(folder, data, SETTINGS) for folder in (tmp_path / "moe", back)]
    assert reports[0].digest == reports[1].digest
    assert reports[0].routing == reports[1].routing
    assert reports[0].notes == reports[1].notes

    pushed.opt_out("math", receipt=tmp_path / "receipt.json")
    problems = [
        {
            text.replace(str(folder), "FOLDER")
            for text in pushed.verify_receipt(tmp_path / "receipt.json", [folder]).problems
        }
        for folder in (tmp_path / "moe", back)
    ]
    assert problems[0] == problems[1]
    assert len(problems[0]) == 1  # it holds what was withdrawn; nothing else is wrong with it


@pytest.mark.check
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("name", ["README.md", "config.json", "model.safetensors"])
def test_a_fetched_folder_with_a_changed_byte_is_refused(pushed: Registry, zoo: Zoo, tmp_path: Path, name: str) -> None:
    back, data = fetched(tmp_path / "back"), {"code": [zoo.test["code"]]}
    further = back / "more.json"
    further.write_text("{}")
    assert list(ComposedFolder.read(back).problems(silent)) == [f"{further} is not a file of the composition"]
    further.unlink()
    changed = bytearray((back / name).read_bytes())
    changed[-2] ^= 1
    (back / name).write_bytes(changed)
    assert list(ComposedFolder.read(back).problems(silent)) == [f"{back / name} was changed since it was written"]
    assert not pushed.reproduce(back).is_same
    if name != "config.json":  # with which it does not load
        pushed.evaluate([back], data, SETTINGS)
    (made,) = pushed.compositions()
    assert pushed.evaluations(made) == []
    with pytest.raises(CheckpointError, match=f"{name} was changed"):
        pushed.train_router(back, tmp_path / "out", [str(zoo.train["code"])], TRAINING)
    with pytest.raises(CheckpointError, match=f"{name} was changed"):
        pushed.push(back, "org/other")
    pushed.opt_out("math", receipt=tmp_path / "receipt.json")
    problems = pushed.verify_receipt(tmp_path / "receipt.json", [back]).problems
    assert f"{back / name} was changed since it was written" in problems
