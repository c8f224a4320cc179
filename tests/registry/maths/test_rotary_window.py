"""Proves: rotary frequencies are those of transformers, and attention to a constant weighs the past exponentially.

The rotary embeddings of well-known models are tried over their whole context, without a stride. In bfloat16, queries,
keys, sines and cosines are rounded as runtimes round them.
"""

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from registry.maths.context.rotary import (
    LARGEST,
    USABLE,
    RotaryTables,
    recency_amplitudes,
    recency_weights,
    rotary_tables,
)
from tests.registry.hosts.test_hosts import LLAMA3 as SHORT_LLAMA3

LLAMA3 = SHORT_LLAMA3 | {"original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
YARN_4096 = YARN | {"rope_theta": 1e4, "factor": 32.0, "original_max_position_embeddings": 4096}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 4096,
    "short_factor": [1.0 + pair / 200 for pair in range(48)],
    "long_factor": [1.0 + 64 * (pair / 47) ** 3 for pair in range(48)],
}
MODELS: dict[str, tuple[dict[str, Any], int, int]] = {
    "llama 2": ({"rope_theta": 10000.0}, 128, 4096),
    "tinyllama": ({"rope_theta": 10000}, 64, 2048),
    "llama 3.1": (LLAMA3, 128, 131072),
    "llama 3.2 1B": (LLAMA3 | {"factor": 32.0}, 64, 131072),
    "mistral nemo": ({"rope_theta": 1e6}, 128, 131072),
    "qwen 2.5 yarn": (YARN, 128, 131072),
    "yarn from 4096": (YARN_4096, 128, 131072),
    "qwen 3, 262144": ({"rope_theta": 5e6}, 128, 262144),
    "phi 3": ({"rope_theta": 10000.0}, 96, 4096),
    "gemma": ({"rope_theta": 10000.0}, 256, 8192),
    "granite": ({"rope_theta": 1e7}, 128, 131072),
    "smollm 2": ({"rope_theta": 1e5}, 64, 8192),
    "olmo 2": ({"rope_theta": 5e5}, 128, 4096),
    "linear": ({"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0}, 128, 32768),
}
"""Model → rope parameters, channels of a head, longest text."""

SCALED: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn of whole numbers": YARN | {"beta_fast": 16, "beta_slow": 2, "factor": 4},
    "yarn mscale": YARN | {"mscale": 0.7, "mscale_all_dim": 0.5},
    "yarn attention factor": YARN | {"attention_factor": 1.3},
    "yarn not truncated": YARN | {"truncate": False},
    "longrope": LONG,
    "longrope factor": LONG | {"factor": 8.0},
    "longrope attention factor": LONG | {"attention_factor": 1.2},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
}


@pytest.mark.parametrize("name", SCALED)
def test_tables_are_those_of_transformers(name: str) -> None:
    parameters, context = SCALED[name], 131072
    size = 96 if parameters["rope_type"] == "longrope" else 128
    found = rotary_tables(parameters, size, context)
    config = LlamaConfig(head_dim=size, hidden_size=4 * size, num_attention_heads=4, max_position_embeddings=context)
    config.rope_parameters = dict(parameters)
    original = parameters.get("original_max_position_embeddings", 4096)
    if parameters["rope_type"] == "longrope":
        config.original_max_position_embeddings = original
    lengths = {"longrope": (original, context), "dynamic": (1, context * 4)}.get(parameters["rope_type"], (None,))
    assert len(found.tables) == len(lengths)
    for table, length in zip(found.tables, lengths, strict=True):
        if parameters["rope_type"] == "default":
            expected, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
        else:
            expected, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"), length)
        assert torch.allclose(table, expected.double(), rtol=1e-5, atol=0)
        assert found.factor == pytest.approx(float(factor))


def from_exponential(scores: torch.Tensor, tau: float) -> float:
    """Return the total variation between attention by scores of distances 0, 1, … and exp(−Δ/τ)."""
    wanted = torch.softmax(-torch.arange(len(scores)).double() / tau, dim=0)
    return float((torch.softmax(scores.double(), dim=0) - wanted).abs().sum()) / 2


def amplitudes_for(rotary: RotaryTables, tau: float) -> torch.Tensor:
    amplitudes = recency_amplitudes(rotary, tau)
    assert amplitudes is not None
    return amplitudes


def scores(table: torch.Tensor, amplitudes: torch.Tensor, length: int) -> torch.Tensor:
    found = torch.zeros(length, dtype=torch.float64)
    distance = torch.arange(length, dtype=torch.float64)
    for theta, amplitude in zip(table.tolist(), amplitudes.tolist(), strict=True):
        found += amplitude * torch.cos(theta * distance)
    return found


@pytest.mark.check(after=23)
@pytest.mark.parametrize("tau", [16.0, 48.0, 128.0])
@pytest.mark.parametrize("name", MODELS)
def test_attention_falls_exponentially_over_the_whole_context(name: str, tau: float) -> None:
    parameters, size, context = MODELS[name]
    rotary = rotary_tables(parameters, size, context)
    amplitudes = amplitudes_for(rotary, tau)
    assert amplitudes.min() >= 0
    assert amplitudes.max() < LARGEST * 1.5
    assert amplitudes.sum() < 60
    found = scores(rotary.tables[0], amplitudes, context)
    assert from_exponential(found, tau) <= USABLE
    weights = recency_weights(rotary, amplitudes, 512)
    assert torch.allclose(weights.log(), (found - found[0])[:512], atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_attends_as_float64_does(name: str) -> None:
    parameters, size, context = MODELS[name]
    rotary = rotary_tables(parameters, size, context)
    amplitudes = amplitudes_for(rotary, 48.0)
    constants = (amplitudes * math.sqrt(size)).sqrt().bfloat16()
    for last in (50, 700, context - 1):
        places = torch.arange(max(0, last - 4095), last + 1).float()
        angles = places[:, None] * rotary.tables[0].float()
        keys = torch.cat([constants * angles.cos().bfloat16(), constants * angles.sin().bfloat16()], dim=1)
        rounded = ((keys.float() @ keys[-1].float()).bfloat16() * size**-0.5).float().flip(0)
        exact = scores(rotary.tables[0], amplitudes, len(places))
        apart = (torch.softmax(rounded.double(), dim=0) - torch.softmax(exact, dim=0)).abs().sum() / 2
        assert float(apart) < 0.05


@pytest.mark.parametrize("table", [0, 1])
def test_one_choice_serves_short_and_long_texts(table: int) -> None:
    near = LONG | {"short_factor": [1.0] * 48, "long_factor": [1.0] * 24 + [1.0 + pair / 8 for pair in range(24)]}
    rotary = rotary_tables(near, 96, 131072)
    amplitudes = amplitudes_for(rotary, 48.0)
    assert from_exponential(scores(rotary.tables[table], amplitudes, 131072), 48.0) <= USABLE


def test_no_window_where_frequencies_do_not_serve_it() -> None:
    with pytest.raises(ValueError, match="rope type 'spiral' is unknown"):
        rotary_tables({"rope_type": "spiral", "rope_theta": 1.0, "original_max_position_embeddings": 1}, 8, 8)
    assert recency_amplitudes(rotary_tables({"rope_theta": 10000.0}, 8, 128), 4.0) is None  # four pairs
    assert recency_amplitudes(RotaryTables((torch.tensor([1.0], dtype=torch.float64),), 1.0, 1000), 48.0) is None
    assert recency_amplitudes(rotary_tables(SCALED["dynamic"], 128, 4096), 48.0) is None  # two very different tables


def test_idle_pairs_are_not_used() -> None:
    """Pairs that hardly turn, as those of channels without a rope, have no part whatever their spacing."""
    table = torch.cat([10000.0 ** -(torch.arange(0, 48, 2) / 48), torch.full((8,), 1e-12)]).double()
    assert amplitudes_for(RotaryTables((table,), 1.0, 4096), 48.0)[24:].sum() == 0
