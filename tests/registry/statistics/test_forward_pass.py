"""Proves: statistics taken layer by layer are those of the whole pass, one layer in memory, the model unchanged."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.checkpoint import Checkpoint
from registry.errors import CalibrationError
from registry.families import FAMILIES
from registry.families.sites import MLP_INPUT
from registry.progress import silent
from registry.runtime.loading import load_model
from registry.runtime.upcast import upcast
from registry.statistics.forward_pass import take_statistics
from registry.statistics.layer_pass import mlp_statistics
from registry.statistics.settings import PassSettings
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint
from tests.registry.statistics.windows import UNEVEN


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
    whole = take_statistics(checkpoint, "", model, UNEVEN, settings, progress=silent).sites[MLP_INPUT]
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
