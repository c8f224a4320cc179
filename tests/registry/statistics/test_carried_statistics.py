"""Proves: a file of statistics comes back equal, is written whole or not at all, and only fits its checkpoint."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Registry
from registry.checkpoint import Checkpoint, hash_checkpoint
from registry.errors import CheckpointError, StorageError
from registry.progress import silent
from registry.statistics import file as statistics_file
from registry.statistics.collect import carried_statistics, collect_to
from tests.conftest import SETTINGS, Zoo


def test_statistics_file_comes_back_equal(bare: Path, zoo: Zoo, tmp_path: Path) -> None:
    path, collected = collect_to(bare, tmp_path, data=[zoo.train["code"]], settings=SETTINGS, keep_calibration=True)
    back = statistics_file.load(path)
    assert back.sites == collected.sites
    assert (back.weights, back.calibration_digest, back.calibration_label) == (
        collected.weights,
        collected.calibration_digest,
        "code.train.jsonl",
    )
    assert back.calibration is not None
    assert back.calibration.digest == collected.calibration_digest


def rewritten(path: Path, edit: Callable[[dict[str, Any], dict[str, torch.Tensor]], object]) -> None:
    """Change a statistics file's document and tensors."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        document = json.loads(file.metadata()["expert-registry"])
    edit(document, tensors)
    save_file(tensors, path, metadata={"expert-registry": json.dumps(document)})


FORGED: dict[str, tuple[Callable[[dict[str, Any], dict[str, torch.Tensor]], object], str]] = {
    "no format": (lambda d, t: d.pop("format"), "was not written by reg collect"),
    "other weights": (
        lambda d, t: d.update(weights="0" * 64),
        "has statistics of weights 000000000000, the checkpoint has",
    ),
    "no site": (lambda d, t: d.update(saturated={}), "has 0 layers of mlp_input, the checkpoint has 2"),
    "other sites alone": (lambda d, t: d["saturated"].pop("mlp_input"), "has 0 layers of mlp_input"),
    "strange site": (
        lambda d, t: (d["saturated"].update(x=[]), t.update({"x.exponents": torch.zeros(1, 1, dtype=torch.int16)})),
        "has statistics of an unknown site: x",
    ),
    "other layers of another site": (
        lambda d, t: d["saturated"].update(attention_output=[0]),
        "has 1 layers of attention_output, the checkpoint has 2",
    ),
    "other token counts": (lambda d, t: t["token_counts"][5].add_(1), "its token counts are not those of 320 tokens"),
    "fold larger than the whole": (
        lambda d, t: t["mlp_input.fold.0.0"].copy_(2 * t["mlp_input.gram.0"]),
        "mlp_input, layer 0, holds no sum over",
    ),
    "a layer less": (
        lambda d, t: d["saturated"].update(mlp_input=[0]),
        "has 1 layers of mlp_input, the checkpoint has 2",
    ),
    "other scales": (lambda d, t: t["mlp_input.exponents"].add_(1), "the scales of mlp_input, layer 0, are not those"),
    "negative": (lambda d, t: t["mlp_input.gram.1"][0].fill_(-1), "mlp_input, layer 1, holds no sum over"),
    "other count": (lambda d, t: t["mlp_input.gram.1"][-1].add_(1), "mlp_input, layer 1, holds no sum over"),
    "wrong length": (lambda d, t: t.update({"mlp_input.gram.0": torch.zeros(5, dtype=torch.int64)}), "is damaged"),
    "no tensor": (lambda d, t: t.pop("mlp_input.gram.0"), "is damaged"),
    "strange document": (lambda d, t: d.update(saturated=7), "saturated is 7, it must be an object of lists of counts"),
    "foreign token": (
        lambda d, t: t.update(
            {
                "calibration.ids": torch.full((1, 2), 10_000, dtype=torch.int32),
                "calibration.lengths": torch.ones(1, dtype=torch.int32),
            }
        ),
        "calibration tokens that the model does not know",
    ),
}


@pytest.mark.check(after=15)
@pytest.mark.parametrize("case", sorted(FORGED))
def test_statistics_that_do_not_belong_are_refused(zoo: Zoo, bare: Path, registry: Registry, case: str) -> None:
    edit, message = FORGED[case]
    path = bare / "statistics.safetensors"
    path.write_bytes((zoo.experts["code"] / path.name).read_bytes())
    rewritten(path, edit)
    with pytest.raises(CheckpointError, match=message):
        registry.add_expert("code", bare)
    assert registry.versions() == []


def test_statistics_of_another_checkpoint_are_refused(zoo: Zoo, bare: Path, registry: Registry) -> None:
    path = bare / "statistics.safetensors"
    path.write_bytes((zoo.experts["law"] / path.name).read_bytes())
    with pytest.raises(CheckpointError, match="has statistics of weights"):
        registry.add_expert("code", bare)


def test_collected_file_has_the_mode_that_the_umask_asks_for(zoo: Zoo, tmp_path: Path) -> None:
    collected = statistics_file.load(zoo.experts["code"] / statistics_file.FILE_NAME)
    before = os.umask(0o027)
    try:
        statistics_file.save(tmp_path / "statistics.safetensors", collected)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "statistics.safetensors").stat().st_mode) == 0o640


def test_checked_statistics_pass(zoo: Zoo) -> None:
    hashed = hash_checkpoint(Checkpoint(zoo.experts["code"]), silent)
    collected = carried_statistics(hashed)
    assert collected is not None
    assert collected.sites == statistics_file.load(zoo.experts["code"] / "statistics.safetensors").sites


def test_write_of_a_statistics_file_takes_no_name_that_nothing_finds_again(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected = statistics_file.load(zoo.experts["code"] / "statistics.safetensors")
    seen: list[list[str]] = []

    def flush(path: Path) -> None:
        seen.append([entry.name for entry in tmp_path.iterdir()])

    monkeypatch.setattr("registry.io.atomic.flush", flush)
    statistics_file.save(tmp_path / "s.safetensors", collected)
    assert seen == [["s.safetensors.partial"], ["s.safetensors"]]  # on disk before it has its name


def test_write_of_a_statistics_file_is_whole_or_not_at_all(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected = statistics_file.load(zoo.experts["code"] / "statistics.safetensors")

    def fail(*_: Any) -> None:
        raise OSError("no")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(StorageError, match=r"s\.safetensors cannot be written: no"):
        statistics_file.save(tmp_path / "s.safetensors", collected)
    assert list(tmp_path.iterdir()) == []
