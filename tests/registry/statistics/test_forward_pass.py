"""Proves: folds are parts of the whole by windows, and token weights are copies.

Statistics taken layer by layer are those of the whole pass, one layer in memory, the model unchanged.
"""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.errors import CalibrationError
from registry.families import FAMILIES
from registry.families.sites import MLP_INPUT
from registry.progress import silent
from registry.runtime.loading import load_model
from registry.runtime.upcast import upcast
from registry.statistics.file import Collected
from registry.statistics.forward_pass import ModelRun, take_statistics
from registry.statistics.layer_pass import mlp_statistics
from registry.statistics.settings import PassSettings
from registry.statistics.site_sums import fold_of_window
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint
from tests.registry.statistics.windows import UNEVEN, windows

WINDOWS = 7
TEXT = windows(WINDOWS, 8, lengths=(8, 5, 8, 8, 3, 8, 8))


def taken(folder: Path, calibration: Calibration, *, folds: int = 1, weights: torch.Tensor | None = None) -> Collected:
    # One window a batch, so that a window's activations do not depend on those beside it.
    settings = PassSettings(batch_size=1, sites="router", dtype="float32", folds=folds)
    run = ModelRun(load_model(folder, "float32", "cpu"), token_weights=weights)
    return take_statistics(Checkpoint(folder), "", run, calibration, settings, progress=silent)


@pytest.mark.parametrize("folds", [2, 3])
def test_folds_are_the_statistics_of_their_windows(zoo: Zoo, folds: int) -> None:
    found, fold_of = taken(zoo.base, TEXT, folds=folds), fold_of_window(WINDOWS, folds)
    counts = torch.bincount(fold_of, minlength=folds)
    assert int(counts.max()) - int(counts.min()) <= 1
    assert not torch.equal(fold_of, fold_of.sort().values)  # neighbours are not of one fold
    for fold in range(folds):
        part = Calibration(TEXT.ids[fold_of == fold], TEXT.lengths[fold_of == fold], "text")
        alone = taken(zoo.base, part).sites[MLP_INPUT]
        assert [found.all_folds(MLP_INPUT, layer)[fold] for layer in range(2)] == list(alone)
    assert found.sites == taken(zoo.base, TEXT).sites
    assert sorted(fold_of_window(folds, folds + 2).tolist()) == list(range(folds))  # as many as windows at most


def test_weight_of_a_token_is_so_many_copies(zoo: Zoo) -> None:
    """Windows of one weight each: repeated so often."""
    times = torch.tensor([1, 2, 0, 3, 1, 1, 2])
    weights = times[:, None].expand(WINDOWS, 8)
    repeated = Calibration(
        TEXT.ids.repeat_interleave(times, dim=0), TEXT.lengths.repeat_interleave(times, dim=0), "text"
    )
    found = taken(zoo.base, TEXT, weights=weights, folds=2)
    assert found.sites == taken(zoo.base, repeated).sites
    assert found.sites[MLP_INPUT][0].count == int((times * TEXT.lengths).sum())


@pytest.mark.check(after=4)
@pytest.mark.trust(after=10)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "upcast"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_layer_by_layer_equals_the_whole_pass(family: str, dtype: str, tmp_path: Path, tokenizer: Any) -> None:
    folder = save_checkpoint(make_model(family, 101, head_dim=8), tmp_path / family, tokenizer)
    checkpoint = Checkpoint(folder, remote_code=True)
    model = upcast(load_model(folder, "bfloat16", "cpu")) if dtype == "upcast" else load_model(folder, dtype, "cpu")
    ids = UNEVEN.ids[:1].long()
    before = model(input_ids=ids).logits
    settings = PassSettings(batch_size=3, sites="router", folds=1)
    whole = take_statistics(checkpoint, "", ModelRun(model), UNEVEN, settings, progress=silent).sites[MLP_INPUT]
    found = mlp_statistics(checkpoint, model, UNEVEN, 3, silent)
    assert len(whole) > 1
    assert next(found) == whole[0]
    assert torch.equal(model(input_ids=ids).logits, before)  # whole between two layers
    assert list(found) == list(whole[1:])
    assert torch.equal(model(input_ids=ids).logits, before)


def test_statistics_of_a_layer_are_freed_before_the_next_runs(zoo: Zoo) -> None:
    model = load_model(zoo.base, "float32", "cpu")
    found = mlp_statistics(Checkpoint(zoo.base), model, UNEVEN, 3, silent)
    earlier = weakref.ref(next(found).matrix)
    gc.collect()
    assert earlier() is None
    del found
    gc.collect()
    assert all(type(layer) is type(model.model.layers[0]) for layer in model.model.layers)


def test_activations_that_are_not_finite_are_refused(zoo: Zoo) -> None:
    model = load_model(zoo.base, "float32", "cpu")
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0, 0] = torch.inf
    found = mlp_statistics(Checkpoint(zoo.base), model, UNEVEN, 3, silent)
    next(found)
    with pytest.raises(CalibrationError, match="site mlp_input, layer 1"):
        next(found)
