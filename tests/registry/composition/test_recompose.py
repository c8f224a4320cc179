"""Proves: recomposing rewrites only what changes, gives the bytes of a fresh folder, and trusts no touched file."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry
from registry.io import model_folder as folder_module
from tests.conftest import files_of


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "ONE_FILE_BYTES", 0)


def parts(folder: Path) -> dict[str, str]:
    """Return which file experts, routers and trunk are in."""
    found = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    names = {"experts": "w1", "routers": "gate.weight", "trunk": "q_proj"}
    return {part: next(file for name, file in found.items() if word in name) for part, word in names.items()}


def inodes(folder: Path) -> dict[str, int]:
    return {part: (folder / name).stat().st_ino for part, name in parts(folder).items()}


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ({}, {"experts", "routers", "trunk"}),
        ({"lam": 3.0}, {"experts", "trunk"}),
        ({"temperature": 0.5}, {"experts", "trunk"}),
        ({"weights": {"law": 2.0}}, {"experts"}),
        ({"trunk": "mean"}, {"experts"}),
        ({"dtype": "bfloat16"}, set()),
    ],
)
def test_what_changes_is_written_anew(
    filled: Registry, tmp_path: Path, changed: dict[str, Any], kept: set[str]
) -> None:
    experts, settings = ["code", "law"], {"router": "ridge", "lam": 1.0, **changed}
    filled.compose(experts, tmp_path / "moe", Recipe(router="ridge", lam=1.0))
    before = inodes(tmp_path / "moe")
    filled.compose(experts, tmp_path / "moe", Recipe(**settings), force=True)
    after = inodes(tmp_path / "moe")
    assert {part for part in after if after[part] == before[part]} == kept
    filled.compose(experts, tmp_path / "fresh", Recipe(**settings))
    assert files_of(tmp_path / "moe") == files_of(tmp_path / "fresh")
    assert {path.stat().st_nlink for path in (tmp_path / "moe").iterdir()} == {1}


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize(
    "changed",
    [
        {"temperature": 0.5},
        {"context_window": 16.0},
        {"vocabulary": "shared"},
        {"weights": {"law": 2.0}},
        {"trunk": "mean"},
        {"router": "ridge"},
    ],
    ids=str,
)
@pytest.mark.parametrize("vocabulary", ["mapped", "shared"])
def test_context_routing_is_written_as_in_a_fresh_folder(
    filled: Registry, tmp_path: Path, changed: dict[str, Any], vocabulary: str
) -> None:
    settings: dict[str, Any] = {"vocabulary": vocabulary, **changed}
    filled.compose(["code", "law"], tmp_path / "moe", Recipe(vocabulary=vocabulary))
    filled.compose(["code", "law"], tmp_path / "moe", Recipe(**settings), force=True)
    filled.compose(["code", "law"], tmp_path / "fresh", Recipe(**settings))
    assert files_of(tmp_path / "moe") == files_of(tmp_path / "fresh")


@pytest.mark.check(after=1)
@pytest.mark.parametrize(
    ("changed", "rewritten"),
    [
        ({}, set[str]()),
        ({"temperature": 0.5}, {"model.layers.1.block_sparse_moe.gate.weight"}),
        ({"context_window": 16.0}, {"model.layers.1.block_sparse_moe.gate.weight"}),
    ],
    ids=str,
)
def test_context_routing_leaves_experts_head_maps_and_trunk(
    filled: Registry, tmp_path: Path, changed: dict[str, Any], rewritten: set[str]
) -> None:
    filled.compose(["code", "law"], tmp_path / "moe", Recipe())
    files = json.loads((tmp_path / "moe" / "model.safetensors.index.json").read_text())["weight_map"]
    before = {name: (tmp_path / "moe" / name).stat().st_ino for name in set(files.values())}
    filled.compose(["code", "law"], tmp_path / "moe", Recipe(**changed), force=True)
    changed_files = {name for name in before if (tmp_path / "moe" / name).stat().st_ino != before[name]}
    assert changed_files == {files[name] for name in rewritten}


def test_weights_leave_the_base_models_trunk_as_it_is(filled: Registry, tmp_path: Path) -> None:
    filled.compose(["code", "law"], tmp_path / "moe", Recipe(trunk="base", router="ridge"))
    before = inodes(tmp_path / "moe")
    filled.compose(
        ["code", "law"], tmp_path / "moe", Recipe(trunk="base", router="ridge", weights={"law": 2.0}), force=True
    )
    after = inodes(tmp_path / "moe")
    assert {part for part in after if after[part] == before[part]} == {"experts", "trunk"}


@pytest.mark.check
def test_another_member_changes_the_experts(filled: Registry, tmp_path: Path) -> None:
    filled.compose(["code", "law"], tmp_path / "moe")
    filled.compose(["code", "math"], tmp_path / "moe", force=True)
    filled.compose(["code", "math"], tmp_path / "fresh")
    assert files_of(tmp_path / "moe") == files_of(tmp_path / "fresh")


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))


def flip_and_hide(path: Path) -> None:
    """Change a file and give it its old times again."""
    found = path.stat()
    flip(path)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def exchange(path: Path) -> None:
    """Put a file of the same bytes in its place."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


def link(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize("touch", [flip, flip_and_hide, exchange, link, Path.unlink])
def test_touched_file_is_written_anew(filled: Registry, tmp_path: Path, touch: Any) -> None:
    recipe = Recipe(router="ridge", lam=1.0)
    filled.compose(["code", "law"], tmp_path / "moe", recipe)
    sound = files_of(tmp_path / "moe")
    touch(tmp_path / "moe" / parts(tmp_path / "moe")["experts"])
    filled.compose(["code", "law"], tmp_path / "moe", recipe, force=True)
    assert files_of(tmp_path / "moe") == sound


@pytest.mark.parametrize("record", ["", "[", '{"files": [["../x", 1]]}', '{"files": [["a", "b", "c", ["d"]]]}'])
def test_record_that_is_none_is_passed_over(filled: Registry, tmp_path: Path, record: str) -> None:
    filled.compose(["code"], tmp_path / "moe")
    sound = files_of(tmp_path / "moe")
    (found,) = filled.home.folders.glob("*.json")
    found.write_text(record)
    filled.compose(["code"], tmp_path / "moe", force=True)
    assert files_of(tmp_path / "moe") == sound


def test_without_hard_links_everything_is_written(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.compose(["code"], tmp_path / "moe")
    sound = files_of(tmp_path / "moe")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    filled.compose(["code"], tmp_path / "moe", force=True)
    assert files_of(tmp_path / "moe") == sound


def test_records_go_with_their_folders_and_with_an_opt_out(filled: Registry, tmp_path: Path) -> None:
    filled.compose(["code"], tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "moved")
    filled.compose(["code"], tmp_path / "two")
    assert len(list(filled.home.folders.glob("*.json"))) == 1
    filled.opt_out("math")
    assert not filled.home.folders.exists()
