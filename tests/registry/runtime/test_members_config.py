"""Proves: the configuration of a folder of several architectures is checked before transformers reads it."""

import json
from typing import Any

import pytest

from registry.errors import CheckpointError
from registry.runtime.members_config import check_whole_members

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 320,
}
HETERO: dict[str, Any] = {
    "model_type": "ensemble_hetero",
    "members": ["code", "math"],
    "member_configs": [LLAMA, LLAMA | {"hidden_size": 48}],
    "routing": "sequence",
    "routing_temperature": 0.05,
    "routing_tokens": 0,
    "routing_top_k": 1,
    "input_projectors": [True, False],
    "output_projectors": [True, False],
    "logit_scale": None,
    "logits_scaling": 4.0,
    "final_logit_softcapping": None,
}
FAMILIES: dict[str, Any] = {
    "model_type": "ensemble_families",
    "auto_map": {"AutoModelForCausalLM": "modeling_families.FamiliesForCausalLM"},
    "members": ["code", "math"],
    "member_configs": [LLAMA, LLAMA | {"hidden_size": 48}],
    "routing": "prompt-perplexity",
    "routing_prior": None,
    "routing_temperature": 1.0,
    "routing_tokens": 32,
    "routing_top_k": 1,
    "shared_tensors": {},
    "mixing": "probabilities",
}


def test_what_is_composed_passes() -> None:
    for config in (HETERO, FAMILIES):
        check_whole_members(json.loads(json.dumps(config)), "config.json")


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (HETERO, {"routing_top_k": 3}, "routing_top_k is 3, it must be from 1 to 2"),
        (HETERO, {"routing_tokens": 1}, "routing_tokens is 1, it must be 0, or from 2"),
        (HETERO, {"routing_temperature": 0}, "routing_temperature"),
        (HETERO, {"routing": "posterior"}, "routing"),
        (HETERO, {"input_projectors": [True]}, "input_projectors has 1 values, expected 2"),
        (HETERO, {"logits_scaling": 0}, "logits_scaling"),
        (HETERO, {"member_configs": [LLAMA]}, "member_configs has 1 configurations, expected 2"),
        (HETERO, {"member_configs": [LLAMA, LLAMA | {"model_type": "gpt2"}]}, "model type 'gpt2' is not one of cohere"),
        (HETERO, {"member_configs": [LLAMA, LLAMA | {"hidden_size": "large"}]}, "hidden_size|its values do not go"),
        (HETERO, {"member_configs": "llama"}, "member_configs"),
        (FAMILIES, {"member_configs": [LLAMA, {}]}, "model type 'None' is not one of"),
        (FAMILIES, {"routing_top_k": 0}, "routing_top_k is 0"),
        (FAMILIES, {"members": ["code"]}, "member_configs has 2 configurations, expected 1"),
    ],
)
def test_another_form_is_refused(config: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        check_whole_members(config | changes, "config.json")


@pytest.mark.parametrize("config", [HETERO, FAMILIES], ids=("hetero", "families"))
def test_every_key_is_needed(config: dict[str, Any]) -> None:
    for key in config.keys() - {"model_type", "auto_map"}:
        with pytest.raises(CheckpointError):
            check_whole_members({name: value for name, value in config.items() if name != key}, "config.json")
