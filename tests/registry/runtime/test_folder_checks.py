"""Proves: the configuration of a folder of several architectures or a SIMoE is checked before transformers reads it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from registry.errors import CheckpointError
from registry.runtime.folder_checks import check_members
from tests.models import SIZES

LLAMA: dict[str, Any] = SIZES | {"model_type": "llama"}
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


LAYERS = [
    f"model.layers.{layer}.{name}_proj"
    for layer in range(2)
    for name in (*(f"self_attn.{part}" for part in "qkvo"), "mlp.gate", "mlp.up", "mlp.down")
]
SIMOE = LLAMA | {
    "model_type": "simoe_llama",
    "members": ["one", "two"],
    "prompt_tokens": 8,
    "interpolated_layers": LAYERS,
    "interpolated_rows": [0, 8, *[16] * 12],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three tensors of at most 320 rows."""
    place = tmp_path_factory.mktemp("stored")
    save_file({name: torch.zeros(320, 48) for name in "abc"}, place / "model.safetensors")
    return place


@pytest.mark.parametrize("config", [SIMOE, HETERO, FAMILIES], ids=("simoe", "hetero", "families"))
def test_configurations_pass_with_every_key(folder: Path, config: dict[str, Any]) -> None:
    check_members(folder, json.loads(json.dumps(config)))
    own = SIMOE.keys() - LLAMA.keys() if config is SIMOE else config.keys()
    for key in own - {"model_type", "auto_map"}:
        with pytest.raises(CheckpointError):
            check_members(folder, {name: value for name, value in config.items() if name != key})


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
        (SIMOE, {"prompt_tokens": 0}, "prompt_tokens is 0, it must be from 1 to"),
        (SIMOE, {"prompt_tokens": "8"}, "prompt_tokens is '8', it must be a count"),
        (SIMOE, {"members": []}, "members is empty"),
        (SIMOE, {"members": 2}, "members is 2, it must be a list"),
        (SIMOE, {"interpolated_layers": LAYERS[1:]}, "interpolated_layers has 13 names, expected 14"),
        (SIMOE, {"interpolated_layers": [*LAYERS[:-1], "../x"]}, "interpolated_layers names '../x'"),
        (SIMOE, {"interpolated_layers": [LAYERS[0]] * 14}, "interpolated_layers has 14 names, expected 14"),
        (SIMOE, {"interpolated_rows": [8] * 13}, "interpolated_rows has 13 counts, expected 14"),
        (SIMOE, {"interpolated_rows": [8, 2**40, *[8] * 12]}, rf"has {2**40} of {LAYERS[1]}, which has \d+"),
        (SIMOE, {"interpolated_rows": [-1] * 14}, "interpolated_rows is .*, it must be a list of which"),
        (SIMOE, {"num_attention_heads": None}, "config.json: "),
        # Sizes that the folder's tensors cannot have.
        (SIMOE, {"num_hidden_layers": 2**30}, "num_hidden_layers is 1073741824, and the folder has 3 tensors"),
        (SIMOE, {"head_dim": 2**30}, "head_dim is 1073741824, and the folder has tensors of at most 320 rows"),
        (SIMOE, {"vocab_size": float("nan")}, "vocab_size is nan"),
        (HETERO, {"hidden_size": 2**30}, "hidden_size is 1073741824, and the folder has tensors of at most 320"),
        (HETERO, {"member_configs": [LLAMA, LLAMA | {"num_hidden_layers": 2**30}]}, "num_hidden_layers is 1073741824"),
        (FAMILIES, {"member_configs": [LLAMA | {"vocab_size": 321}, LLAMA]}, "vocab_size is 321"),
    ],
)
def test_another_form_is_refused(folder: Path, config: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        check_members(folder, config | changes)
