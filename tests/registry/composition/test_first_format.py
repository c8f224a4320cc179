"""Proves: a folder of format 1, from before weights had tree digests, is checked, reproduced, trained and pushed."""

import hashlib
import shutil
from pathlib import Path

import pytest

from registry import Recipe, Registry, TrainSettings
from registry.composition.manifest import ComposedFolder
from registry.composition.reproduce import Compared
from registry.errors import CheckpointError
from registry.io import model_folder
from registry.io.model_folder import MARKER, json_file
from registry.progress import silent
from tests.conftest import Zoo, files_of
from tests.digests import digests_of
from tests.registry.composition.composed import json_of
from tests.registry.composition.test_reproduce import RECIPES
from tests.writable_hub import writable_hub


def in_first_format(folder: Path) -> Path:
    """Rewrite a composed folder as format 1 has it."""
    document = json_of(folder)
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        text = data[8:start].rstrip(b" ")
        text += b" " * (-len(text) % 8)
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[start:])
    files = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in document["files"]}
    (folder / MARKER).write_bytes(json_file(document | {"format": 1, "files": files}))
    return folder


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize("name", ["context", "dense", "dare", "posterior"])
def test_it_is_checked_and_reproduced(
    filled: Registry, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several files, but for an ensemble in one."""
    if name != "posterior":
        monkeypatch.setattr(model_folder, "ONE_FILE_BYTES", 0)
    plan = filled.compose(["math", "code"], tmp_path / "made", RECIPES[name])
    now = files_of(tmp_path / "made")
    folder = in_first_format(tmp_path / "made")
    assert files_of(folder) != now
    composed = ComposedFolder.read(folder)
    assert composed.digest == plan.digest
    composed.check(silent)
    found = filled.reproduce(folder, tmp_path / "again")
    assert (found.is_same, found.digest) == (True, plan.digest)
    assert files_of(tmp_path / "again") == now
    assert filled.reproduce(folder).is_same


def test_what_was_changed_is_named(filled: Registry, tmp_path: Path) -> None:
    filled.compose(["math", "code"], tmp_path / "made")
    folder = in_first_format(tmp_path / "made")
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-7] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    found = filled.reproduce(folder)
    assert found.differing == (Compared("model.safetensors", "differs", len(weights) - 7),)
    with pytest.raises(CheckpointError, match="was changed since it was written"):
        ComposedFolder.read(folder).check(silent)
    document = json_of(folder)
    document["files"]["model.safetensors"] = hashlib.sha256(weights).hexdigest()
    (folder / MARKER).write_bytes(json_file(document))
    assert [file.name for file in filled.reproduce(folder).differing] == [MARKER, "model.safetensors"]


def test_its_routers_are_trained(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    filled.compose(["code", "math"], tmp_path / "made", Recipe(router="ridge"))
    shutil.copytree(tmp_path / "made", tmp_path / "first")
    in_first_format(tmp_path / "first")
    settings = TrainSettings(steps=2, batch_size=2, seq_len=32)
    data = [str(zoo.train["code"])]
    trained = [
        filled.train_router(tmp_path / name, tmp_path / f"{name}-out", data, settings) for name in ("made", "first")
    ]
    assert trained[0].digest == trained[1].digest
    files, document = files_of(tmp_path / "first-out"), json_of(tmp_path / "first-out")
    assert (document["format"], document["files"]) == (2, digests_of(files))
    ComposedFolder.read(tmp_path / "first-out").check(silent)


def test_it_is_pushed_as_it_is(zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Registry(tmp_path / "home") as registry:
        for name in ("code", "math"):
            registry.add_expert(name, zoo.experts[name], license="mit")
        registry.compose(["code", "math"], tmp_path / "made", Recipe(trunk="mean"))
        folder = in_first_format(tmp_path / "made")
        for hub in writable_hub(monkeypatch, tmp_path / "huggingface"):
            registry.push(folder, "org/moe")
            sent, made = hub.files("org/moe"), files_of(folder)
            assert {name for name in made if sent[name] != made[name]} == {"README.md"}
