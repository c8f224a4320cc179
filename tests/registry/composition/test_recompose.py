"""Proves: recomposing rewrites only what changes, gives the bytes of a fresh folder, and trusts no touched file."""

import os
from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry
from registry.io import model_folder as folder_module
from tests.conftest import files_of
from tests.registry.composition.composed import GATE, json_of

PAIR = ("code", "law")


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "ONE_FILE_BYTES", 0)


def file_of(folder: Path, word: str) -> Path:
    """Return the file that holds the first tensor with a word in its name."""
    found: dict[str, str] = json_of(folder, "model.safetensors.index.json")["weight_map"]
    return folder / next(file for name, file in found.items() if word in name)


def inodes(folder: Path) -> dict[str, int]:
    """Return the numbers of the files that experts, routers and trunk are in."""
    words = {"experts": "w1", "routers": "gate.weight", "trunk": "q_proj"}
    return {part: file_of(folder, word).stat().st_ino for part, word in words.items()}


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ({}, {"experts", "routers", "trunk"}),
        ({"lam": 3.0}, {"experts", "trunk"}),
        ({"weights": {"law": 2.0}, "trunk": "base"}, {"experts", "trunk"}),
        ({"weights": {"law": 2.0}}, {"experts"}),
        ({"temperature": 0.5}, {"experts", "trunk"}),
        ({"trunk": "mean"}, {"experts"}),
        ({"dtype": "bfloat16"}, set()),
    ],
)
def test_what_changes_is_written_anew(
    filled: Registry, tmp_path: Path, changed: dict[str, Any], kept: set[str]
) -> None:
    start: dict[str, Any] = {
        "router": "ridge",
        "lam": 1.0,
        "trunk": "base" if "base" in changed.values() else "regmean",
    }
    filled.compose(PAIR, tmp_path / "moe", Recipe(**start))
    before = inodes(tmp_path / "moe")
    filled.compose(PAIR, tmp_path / "moe", Recipe(**start | changed), force=True)
    after = inodes(tmp_path / "moe")
    assert {part for part in after if after[part] == before[part]} == kept
    filled.compose(PAIR, tmp_path / "fresh", Recipe(**start | changed))
    assert files_of(tmp_path / "moe") == files_of(tmp_path / "fresh")
    assert {path.stat().st_nlink for path in (tmp_path / "moe").iterdir()} == {1}


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize(
    "changed",
    [
        {"temperature": 0.5},
        {"context_window": 16.0},
        {},
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
    """What only routers follow from leaves experts, head maps and trunk."""
    settings: dict[str, Any] = {**({} if "router" in changed else {"vocabulary": vocabulary}), **changed}
    filled.compose(PAIR, tmp_path / "moe", Recipe(vocabulary=vocabulary))
    gates = file_of(tmp_path / "moe", GATE.format(1))
    before = {path.name: path.stat().st_ino for path in (tmp_path / "moe").glob("*.safetensors")}
    filled.compose(PAIR, tmp_path / "moe", Recipe(**settings), force=True)
    filled.compose(PAIR, tmp_path / "fresh", Recipe(**settings))
    assert files_of(tmp_path / "moe") == files_of(tmp_path / "fresh")
    if changed.keys() <= {"temperature", "context_window"} and vocabulary == "mapped":
        rewritten = {name for name in before if (tmp_path / "moe" / name).stat().st_ino != before[name]}
        assert rewritten == ({gates.name} if changed else set())


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
    filled.compose(PAIR, tmp_path / "moe", recipe)
    sound = files_of(tmp_path / "moe")
    touch(file_of(tmp_path / "moe", "w1"))
    filled.compose(PAIR, tmp_path / "moe", recipe, force=True)
    assert files_of(tmp_path / "moe") == sound


def test_without_record_or_links_all_is_written(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.compose(["code"], tmp_path / "moe")
    sound = files_of(tmp_path / "moe")
    for record in ("", "[", '{"files": [["../x", 1]]}', '{"files": [["a", "b", "c", ["d"]]]}'):
        (found,) = filled.home.folders.glob("*.json")
        found.write_text(record)
        filled.compose(["code"], tmp_path / "moe", force=True)
        assert files_of(tmp_path / "moe") == sound

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    filled.compose(["code"], tmp_path / "moe", force=True)
    assert files_of(tmp_path / "moe") == sound


@pytest.mark.check
def test_another_member_changes_the_experts_and_records_go_with_folders(filled: Registry, tmp_path: Path) -> None:
    filled.compose(PAIR, tmp_path / "one")
    filled.compose(["code", "math"], tmp_path / "one", force=True)
    filled.compose(["code", "math"], tmp_path / "fresh")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "fresh")
    (tmp_path / "fresh").rename(tmp_path / "moved too")
    (tmp_path / "one").rename(tmp_path / "moved")
    filled.compose(["code"], tmp_path / "two")
    assert len(list(filled.home.folders.glob("*.json"))) == 1
    filled.opt_out("math")
    assert not filled.home.folders.exists()
