"""Proves: the bounds of every site hold for whatever a model is shown, and follow from the weights that make them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.families.sites import ATTENTION_OUTPUT, SITES
from registry.progress import silent
from registry.statistics.forward_pass import take_statistics
from registry.statistics.scales import scales
from registry.statistics.settings import PassSettings
from tests.models import make_model, save_checkpoint
from tests.registry.hosts.test_hosts import CASES

FAMILIES = ("llama attention bias", "qwen2", "phi3", "gemma", "olmo2", "olmo3", "cohere", "gpt_neox", "stablelm")
"""Biases, fused projections, grouped values, offsets, residual streams, norms with biases."""


def values_of(layer: Any, config: Any) -> tuple[torch.nn.Linear, slice | list[int]]:
    """Return the module that makes a layer's values, and its rows that do."""
    size = config.hidden_size // config.num_attention_heads
    if hasattr(layer, "attention"):  # query, key and value rows of each head side by side
        rows = torch.arange(3 * config.hidden_size).view(-1, 3, size)[:, 2].flatten().tolist()
        return layer.attention.query_key_value, rows
    if hasattr(layer.self_attn, "qkv_proj"):
        return layer.self_attn.qkv_proj, slice(-config.num_key_value_heads * size, None)
    return layer.self_attn.v_proj, slice(None)


@pytest.mark.check(after=5)
@pytest.mark.parametrize("name", FAMILIES)
def test_attention_output_is_bounded_by_the_values_alone(name: str, tmp_path: Path, tokenizer: Any) -> None:
    """Values times 64 move the scales by six bits and still do not saturate; queries and keys move nothing.

    Every token alone in its text attends to itself, so that the values themselves are the outputs.
    """
    model = make_model(CASES[name].family, 101, **CASES[name].config)
    before = scales(
        Checkpoint(save_checkpoint(model, tmp_path / "plain", tokenizer), remote_code=True), ATTENTION_OUTPUT
    )
    with torch.no_grad():
        for layer in model.base_model.layers:
            module, rows = values_of(layer, model.config)
            for parameter in module.parameters():
                parameter.mul_(0.5)
                parameter[rows] = parameter[rows] * 128
            for part in ("q_proj", "k_proj"):
                if hasattr(layer, "self_attn") and hasattr(layer.self_attn, part):
                    getattr(layer.self_attn, part).weight.mul_(0.5)
    checkpoint = Checkpoint(save_checkpoint(model, tmp_path / "loud", tokenizer), remote_code=True)
    after = scales(checkpoint, ATTENTION_OUTPUT)
    for one, other in zip(before.exponents, after.exponents, strict=True):
        assert torch.equal(one - 6, other)
    calibration = Calibration(torch.arange(320, dtype=torch.int32)[:, None], torch.ones(320, dtype=torch.int32), "")
    settings = PassSettings(batch_size=64, dtype="float32")
    taken = take_statistics(checkpoint, "", model, calibration, settings, progress=silent)
    assert set(taken.sites) == set(SITES["all"])
    for site, layers in taken.sites.items():
        assert [layer.saturated for layer in layers] == [0] * len(layers), site
    for layer in taken.sites[ATTENTION_OUTPUT]:
        # Nor is the bound idle: the loudest channel comes within a factor of 256 of its 20 bits.
        assert float(layer.matrix.diagonal()[:-1].max()) / layer.count > 2.0 ** (2 * (19 - 8))
