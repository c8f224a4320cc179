"""Proves: a config.json is read as transformers reads it, whatever it leaves out and in either spelling of the rope."""

import copy
from typing import Any

import pytest
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from registry.errors import UnsupportedFamilyError
from registry.families import FAMILIES, family_of
from registry.families.family import Family
from registry.families.rope import ORIGINAL
from registry.hosts.architecture import Architecture

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 160,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "vocab_size": 320,
}
LLAMA3 = {
    "type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
TABLE = [1.0] * 8
CHANGES: dict[str, dict[str, Any]] = {
    "silent": {},
    "grouped keys": {"num_key_value_heads": 2},
    "keys null": {"num_key_value_heads": None},
    "heads": {"head_dim": 24},
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
    "theta": {"rope_theta": 12345.0},
    "scaled, old spelling": {"rope_theta": 500000.0, "rope_scaling": LLAMA3, "max_position_embeddings": 256},
    "linear, old spelling": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "window": {"sliding_window": 16},
    "window null": {"sliding_window": None},
    "window in use": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3},
    "window in use, null": {"use_sliding_window": True, "sliding_window": None},
    "window pattern": {"sliding_window_pattern": 3},
    "ropeless layers": {"no_rope_layer_interval": 3},
    "activation": {"hidden_act": "gelu"},
    "biases": {"attention_bias": True},
    "partial": {"partial_rotary_factor": 0.5},
    "longrope": {
        "original_max_position_embeddings": 64,
        "max_position_embeddings": 512,
        "rope_scaling": {"type": "longrope", "short_factor": TABLE, "long_factor": TABLE},
    },
    "yarn on full layers": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "rope_theta": 20000.0},
    "local base": {"rope_local_base_freq": 5000.0},
    "neox words": {"rotary_pct": 0.5, "rotary_emb_base": 5000},
}
_NAMED_OTHERWISE = {
    "gemma2": ("hidden_act",),
    "gemma3_text": ("hidden_act",),
    "gpt_neox": ("num_key_value_heads", "head_dim"),
}
ONLY = {  # changes that a family's own configuration refuses, or that mean nothing to it
    "longrope": ("phi3",),
    "scaled, old spelling": ("llama", "mistral", "qwen2", "qwen3", "granite", "cohere", "cohere2", "smollm3", "olmo2"),
    "linear, old spelling": ("llama", "mistral", "qwen2", "qwen3", "granite", "olmo2", "stablelm", "gpt_neox"),
    "yarn on full layers": ("olmo3", "gemma3_text"),
    "partial": ("phi3", "stablelm"),
    "keys null": ("llama", "phi3", "qwen2", "olmo2", "olmo3", "granite", "cohere", "cohere2"),
    "heads": ("llama", "mistral", "qwen3", "gemma", "gemma2", "gemma3_text"),
}


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_reads_what_transformers_reads(model_type: str) -> None:
    family, read = FAMILIES[model_type], 0
    for change, keys in CHANGES.items():
        if model_type not in ONLY.get(change, FAMILIES):
            continue
        config = SIZES | keys
        theirs = CONFIG_MAPPING[model_type](**config)
        mine, spelled_out = family.architecture(config), family.architecture(theirs.to_dict())
        assert mine.differences(spelled_out) == [], change
        for name in Architecture.__dataclass_fields__.keys() - {"options", "rope_parameters"}:
            if name not in _NAMED_OTHERWISE.get(model_type, ()) and hasattr(theirs, name):
                assert getattr(mine, name) == getattr(theirs, name), (change, name)
        assert _known(mine.rope_parameters) == _known(theirs.rope_parameters), change
        read += 1
    assert read >= 10
    silent = CONFIG_MAPPING[model_type]()
    assert family.special_tokens == (silent.bos_token_id, silent.eos_token_id, silent.pad_token_id)


@pytest.mark.parametrize("within", [None, 64])
def test_length_beside_the_rope_counts_as_in_a_model_of_transformers(within: int | None) -> None:
    rope = {key: value for key, value in LLAMA3.items() if key != ORIGINAL} | ({ORIGINAL: within} if within else {})
    config: dict[str, Any] = SIZES | {"rope_scaling": rope, "max_position_embeddings": 256, ORIGINAL: 32}
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING["llama"](**copy.deepcopy(config)))
    theirs = model.config.rope_parameters  # a configuration by itself does not yet have it
    assert theirs[ORIGINAL] == 32
    assert _known(FAMILIES["llama"].architecture(config).rope_parameters) == _known(theirs)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": None}, "hidden_size is None, not a positive integer|do not go together"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers is 2.5|do not go together"),
        ({"num_attention_heads": 0}, "do not go together"),
        ({"vocab_size": True}, "vocab_size is True, not a positive integer"),
        ({"vocab_size": 2**31}, "not a positive integer"),
        ({"num_attention_heads": 12, "num_key_value_heads": 8}, "12 attention heads cannot share 8 heads of keys"),
        ({"rope_scaling": "linear"}, "do not go together"),
    ],
)
def test_values_that_no_model_can_have_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FAMILIES["llama"].architecture(SIZES | config)


def test_missing_sizes_and_a_family_without_a_translation_are_told() -> None:
    with pytest.raises(ValueError, match="hidden_size, vocab_size missing"):
        FAMILIES["llama"].architecture({k: v for k, v in SIZES.items() if k not in ("hidden_size", "vocab_size")})
    with pytest.raises(UnsupportedFamilyError, match="transformers has no causal language model of this type"):
        family_of("nonesuch")
    with pytest.raises(NotImplementedError):
        Family().translations(FAMILIES["llama"].architecture(SIZES))


def _known(rope: dict[str, Any]) -> dict[str, Any]:
    """Return a rope without the old word for its type, which transformers keeps beside the new one."""
    return {key: _known(value) if isinstance(value, dict) else value for key, value in rope.items() if key != "type"}
