"""Proves: a model without its weights has the parameters and buffers of the loaded one, in one order, and its ties.

Processes that share a training walk through both side by side, and would wait for one another over any difference.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from registry.families import FAMILIES
from registry.runtime.loading import load_model, unloaded_model
from tests.models import make_model, save_checkpoint

CASES: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in sorted(FAMILIES)),
    ("llama", {"tie_word_embeddings": True}),
]


@pytest.mark.check(after=6)
@pytest.mark.trust(after=12)
@pytest.mark.parametrize(("family", "changes"), CASES)
def test_without_weights_it_is_the_loaded_one(
    tmp_path: Path, tokenizer: Any, family: str, changes: dict[str, Any]
) -> None:
    folder = save_checkpoint(make_model(family, 100, **changes), tmp_path / "model", tokenizer, dtype=torch.bfloat16)
    loaded, unloaded = load_model(folder, "float32", "cpu"), unloaded_model(folder)
    kinds = [
        [(name, part.shape, part.dtype, part.device.type) for name, part in model.named_parameters()]
        for model in (loaded, unloaded)
    ]
    assert kinds[0] == kinds[1]
    buffers = [dict(model.named_buffers()) for model in (loaded, unloaded)]
    assert list(buffers[0]) == list(buffers[1])
    assert all(torch.equal(buffers[1][name], buffer) for name, buffer in buffers[0].items())
    assert [type(part) for part in loaded.modules()] == [type(part) for part in unloaded.modules()]
    assert not unloaded.training
    with torch.no_grad():
        for own, part in zip(unloaded.parameters(), loaded.parameters(), strict=True):
            own.copy_(part)
        ids = torch.arange(2, 34)[None]
        assert torch.equal(unloaded(input_ids=ids).logits, loaded(input_ids=ids).logits)
