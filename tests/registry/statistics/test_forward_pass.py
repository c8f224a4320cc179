"""Proves: folds are parts of the whole by windows, token weights are copies, and hook points may be elsewhere."""

from pathlib import Path
from typing import Any

import pytest
import torch

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.families.sites import MLP_INPUT
from registry.maths.statistics import Statistics
from registry.progress import silent
from registry.runtime.loading import load_model
from registry.statistics.file import Collected
from registry.statistics.forward_pass import ModelRun, take_statistics
from registry.statistics.settings import PassSettings
from registry.statistics.site_sums import HookPoint, fold_of_window
from tests.conftest import Zoo

WINDOWS = 7
LENGTHS = torch.tensor([8, 5, 8, 8, 3, 8, 8], dtype=torch.int32)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    ids = torch.randint(1, 320, (WINDOWS, 8), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    return Calibration(ids.masked_fill(torch.arange(8) >= LENGTHS[:, None], 0), LENGTHS, "text")


def taken(folder: Path, calibration: Calibration, *, folds: int = 1, **observed: Any) -> Collected:
    # One window a batch, so that a window's activations do not depend on those beside it.
    settings = PassSettings(batch_size=1, sites="router", dtype="float32", folds=folds)
    run = ModelRun(load_model(folder, "float32", "cpu"), **observed)
    return take_statistics(Checkpoint(folder), "", run, calibration, settings, progress=silent)


@pytest.mark.parametrize("folds", [2, 3])
def test_folds_are_the_statistics_of_their_windows(zoo: Zoo, calibration: Calibration, folds: int) -> None:
    found, fold_of = taken(zoo.base, calibration, folds=folds), fold_of_window(WINDOWS, folds)
    counts = torch.bincount(fold_of, minlength=folds)
    assert int(counts.max()) - int(counts.min()) <= 1
    assert not torch.equal(fold_of, fold_of.sort().values)  # neighbours are not of one fold
    for fold in range(folds):
        part = Calibration(calibration.ids[fold_of == fold], LENGTHS[fold_of == fold], "text")
        alone = taken(zoo.base, part).sites[MLP_INPUT]
        assert [found.all_folds(MLP_INPUT, layer)[fold] for layer in range(2)] == list(alone)
    assert found.sites == taken(zoo.base, calibration).sites


def test_as_many_folds_as_windows_at_most() -> None:
    assert sorted(fold_of_window(3, 5).tolist()) == [0, 1, 2]
    assert fold_of_window(4, 1).tolist() == [0, 0, 0, 0]


def test_weight_of_a_token_is_so_many_copies(zoo: Zoo, calibration: Calibration) -> None:
    """Windows of one weight each: repeated so often."""
    times = torch.tensor([1, 2, 0, 3, 1, 1, 2])
    weights = times[:, None].expand(WINDOWS, 8)
    repeated = Calibration(
        calibration.ids.repeat_interleave(times, dim=0), LENGTHS.repeat_interleave(times, dim=0), "text"
    )
    found = taken(zoo.base, calibration, token_weights=weights, folds=2)
    assert found.sites == taken(zoo.base, repeated).sites
    assert found.sites[MLP_INPUT][0].count == int((times * LENGTHS).sum())


def test_hook_points_may_be_elsewhere(zoo: Zoo, calibration: Calibration) -> None:
    """What the second layer's MLP sees, taken for the first's."""

    def swapped(model: Any) -> list[HookPoint]:
        return [
            HookPoint(MLP_INPUT, 1 - layer, of.post_attention_layernorm, after=True)
            for layer, of in enumerate(model.model.layers)
        ]

    one = taken(zoo.base, calibration).sites[MLP_INPUT]
    other = taken(zoo.base, calibration, hook_points=swapped).sites[MLP_INPUT]
    for layer in range(2):
        scaled = Statistics(other[1 - layer].matrix, one[layer].exponents)
        same = (one[layer].exponents == other[1 - layer].exponents).nonzero()[:, 0]
        assert len(same) > 3
        assert torch.equal(scaled.matrix[same][:, same], one[layer].matrix[same][:, same])
