"""Proves: token weights are copies.

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
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint
from tests.registry.statistics.windows import UNEVEN, windows

WINDOWS = 7
TEXT = windows(WINDOWS, 8, lengths=(8, 5, 8, 8, 3, 8, 8))


def taken(folder: Path, calibration: Calibration, *, weights: torch.Tensor | None = None) -> Collected:
    # One window a batch, so that a window's activations do not depend on those beside it.
    settings = PassSettings(batch_size=1, sites="router", dtype="float32")
    run = ModelRun(load_model(folder, "float32", "cpu"), token_weights=weights)
    return take_statistics(Checkpoint(folder), "", run, calibration, settings, progress=silent)


def test_weight_of_a_token_is_so_many_copies(zoo: Zoo) -> None:
    """Windows of one weight each: repeated so often."""
    times = torch.tensor([1, 2, 0, 3, 1, 1, 2])
    weights = times[:, None].expand(WINDOWS, 8)
    repeated = Calibration(
        TEXT.ids.repeat_interleave(times, dim=0), TEXT.lengths.repeat_interleave(times, dim=0), "text"
    )
    found = taken(zoo.base, TEXT, weights=weights)
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
    settings = PassSettings(batch_size=3, sites="router")
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
