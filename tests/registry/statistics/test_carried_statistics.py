"""Proves: a file of statistics comes back equal, is written whole or not at all, and only fits its checkpoint.

Its mode is that which the umask asks for. The cache gives back what was put there, bit for bit, or nothing.
"""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from registry import Registry
from registry.errors import CheckpointError, StorageError
from registry.families.sites import MLP_INPUT
from registry.hub.expert_files import collected_of
from registry.statistics import file as statistics_file
from registry.statistics.cache import FileCache
from registry.statistics.collect import collect_to
from tests.conftest import SETTINGS, Zoo


def test_statistics_file_comes_back_equal(bare: Path, zoo: Zoo, tmp_path: Path) -> None:
    path, collected = collect_to(bare, tmp_path, data=[zoo.train["code"]], settings=SETTINGS, keep_calibration=True)
    back = statistics_file.load(path)
    for name in ("sites", "weights", "calibration_digest", "calibration_label"):
        assert getattr(back, name) == getattr(collected, name)
    assert back.calibration_label == "code.train.jsonl"
    assert back.calibration is not None
    assert back.calibration.digest == collected.calibration_digest


def rewritten(path: Path, edit: "Edit") -> None:
    """Change a statistics file's document and tensors."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        document = json.loads(file.metadata()["expert-registry"])
    edit(document, tensors)
    save_file(tensors, path, metadata={"expert-registry": json.dumps(document)})


KEY = "ab" * 32
Edit = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]
"""Changes the document of a statistics file, and its tensors."""

FORGED: dict[str, tuple[Edit, str]] = {
    "no format": (lambda d, t: d.pop("format"), "was not written by reg collect"),
    "other weights": (lambda d, t: d.update(weights="0" * 64), "has statistics of weights 000000000000, the"),
    "other sites alone": (lambda d, t: d["saturated"].pop("mlp_input"), "has 0 layers of mlp_input"),
    "strange site": (
        lambda d, t: (d["saturated"].update(x=[]), t.update({"x.exponents": torch.zeros(1, 1, dtype=torch.int16)})),
        "has statistics of an unknown site: x",
    ),
    "a layer less": (lambda d, t: d["saturated"].update(attention_output=[0]), "has 1 layers of attention_output"),
    "other token counts": (lambda d, t: t["token_counts"][5].add_(1), "its token counts are not those of 320 tokens"),
    "a short part": (lambda d, t: t.update({"mlp_input.fold.0.0": torch.zeros(5, dtype=torch.int64)}), "is damaged"),
    "other scales": (lambda d, t: t["mlp_input.exponents"].add_(1), "the scales of mlp_input, layer 0, are not those"),
    "negative": (lambda d, t: t["mlp_input.gram.1"][0].fill_(-1), "mlp_input, layer 1, holds no sum over"),
    "other count": (lambda d, t: t["mlp_input.gram.1"][-1].add_(1), "mlp_input, layer 1, holds no sum over"),
    "wrong length": (lambda d, t: t.update({"mlp_input.gram.0": torch.zeros(5, dtype=torch.int64)}), "is damaged"),
    "no tensor": (lambda d, t: t.pop("mlp_input.gram.0"), "is damaged"),
    "strange document": (lambda d, t: d.update(saturated=7), "saturated is 7, it must be an object of lists of counts"),
    "foreign token": (
        lambda d, t: t.update(
            {"calibration.ids": torch.full((1, 2), 10_000).int(), "calibration.lengths": torch.ones(1).int()}
        ),
        "calibration tokens that the model does not know",
    ),
}


@pytest.mark.parametrize("case", sorted(FORGED))
def test_statistics_that_do_not_belong_are_refused(zoo: Zoo, bare: Path, registry: Registry, case: str) -> None:
    edit, message = FORGED[case]
    path = bare / "statistics.safetensors"
    path.write_bytes((zoo.experts["code"] / path.name).read_bytes())
    rewritten(path, edit)
    with pytest.raises(CheckpointError, match=message):
        registry.add_expert("code", bare)
    assert registry.versions() == []


def test_parts_of_an_earlier_release_are_carried_on_and_nothing_is_made_of_them(
    registry: Registry, bare: Path, zoo: Zoo, tmp_path: Path
) -> None:
    """A version with them is also found again by its text, before its forward pass."""
    data = [zoo.train["code"]]
    path, taken = collect_to(bare, bare, data=data, settings=SETTINGS)
    names = [f"mlp_input.fold.{layer}.{number}" for layer in range(2) for number in range(2)]

    def in_three_parts(document: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        document["computed"]["folds"] = 3
        tensors.update({name: torch.full_like(tensors["mlp_input.gram.0"], 7) for name in names})

    rewritten(path, in_three_parts)
    version = registry.add_expert("code", bare).version
    member = registry.member(version)
    assert [member.statistics(MLP_INPUT, layer) for layer in range(2)] == list(taken.sites[MLP_INPUT])
    statistics_file.save(tmp_path / "again.safetensors", collected_of(member))
    found = load_file(tmp_path / "again.safetensors")
    assert found.keys() == load_file(path).keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in load_file(path).items())
    path.unlink()
    repeated = registry.add_expert("code", bare, data=data, settings=SETTINGS)
    assert (repeated.added, repeated.version) == (False, version)


@pytest.fixture
def collected(zoo: Zoo) -> statistics_file.Collected:
    return statistics_file.load(zoo.experts["code"] / "statistics.safetensors")


def test_write_of_a_file_is_whole_or_not_at_all(
    collected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "s.safetensors", list[list[str]]()

    def fail(*_: Any) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(StorageError, match=r"s\.safetensors cannot be written: no"):
            statistics_file.save(path, collected)
    assert list(tmp_path.iterdir()) == []
    before = os.umask(0o027)
    monkeypatch.setattr("registry.io.disk.flush", lambda _: seen.append([one.name for one in tmp_path.iterdir()]))
    try:
        statistics_file.save(path, collected)
    finally:
        os.umask(before)
    # On disk before it has its name, and never under one that nothing finds again.
    assert seen == [["s.safetensors.partial"], ["s.safetensors"]]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_the_cache_gives_back_what_was_put(tmp_path: Path, collected: statistics_file.Collected) -> None:
    cache = FileCache(tmp_path / "cache")
    assert cache.get(KEY) is None
    cache.put(KEY, collected)
    found = cache.get(KEY)
    assert found is not None
    for layer, expected in enumerate(collected.sites[MLP_INPUT]):
        assert found.sites[MLP_INPUT][layer] == expected
    assert cache.get("cd" * 32) is None
    assert [path.name.split(".")[0] for path in cache.folder.iterdir()] == [KEY]


@pytest.mark.parametrize("place", [0, 100, -1])
def test_any_damage_to_the_cache_is_found_out(tmp_path: Path, collected: statistics_file.Collected, place: int) -> None:
    cache = FileCache(tmp_path)
    cache.put(KEY, collected)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[place] ^= 4
    path.write_bytes(damaged)
    assert cache.get(KEY) is None
    assert not path.exists()
    path.write_bytes(whole[:-9])
    assert cache.get(KEY) is None
    cache.put(KEY, collected)
    assert path.read_bytes() == whole


def test_file_that_goes_meanwhile_can_still_be_read(tmp_path: Path, collected: statistics_file.Collected) -> None:
    """Another process opts a version out, which empties the cache, while a composition reads."""
    cached = FileCache(tmp_path).put(KEY, collected)
    (path,) = tmp_path.iterdir()
    path.unlink()
    assert cached.sites[MLP_INPUT][0] == collected.sites[MLP_INPUT][0]
