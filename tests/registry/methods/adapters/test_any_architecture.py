"""Proves: adapters of any causal language model of transformers compose, its layers known to the registry or not."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import PassSettings, Recipe, Registry
from registry.errors import CheckpointError, InvalidInputError, UnsupportedFamilyError
from registry.runtime.gates import force_expert
from registry.runtime.loading import has_our_code
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint
from tests.registry.checkpoint.test_adapter import train
from tests.registry.methods.adapters.test_compose_adapters import (
    CLOSE,
    COUNTS,
    IDS,
    TO,
    chosen_of,
    loaded,
    logits,
    peft_logits,
)

MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 8}
MIXTURE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {  # what is changed of the sizes, and the adapter's target_modules
    "mixtral": ({"num_local_experts": 4}, ["q_proj", "v_proj", "o_proj", "lm_head"]),
    "qwen3_moe": ({"num_experts": 4, **MIXTURE}, ["q_proj", "o_proj"]),
    "mamba2": ({"num_heads": 4, "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 8}, ["in_proj"]),
    "bamba": ({"attn_layer_indices": [1], **MAMBA}, ["q_proj", "in_proj", "down_proj"]),
    "falcon_h1": ({**MAMBA, "mamba_d_ssm": 64}, ["q_proj", "in_proj", "gate_proj"]),
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, ["q_proj", "in_proj", "w1"]),
    "gpt_oss": ({"num_local_experts": 4, "sliding_window": 8, "num_experts_per_tok": 2}, ["q_proj", "o_proj"]),
    "qwen3_next": (
        {
            **MIXTURE, "num_experts": 4, "shared_expert_intermediate_size": 32, "linear_num_value_heads": 4,
            "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
            "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        },
        ["q_proj", "in_proj_qkvz", "out_proj"],
    ),
    "deepseek_v3": (
        {
            **MIXTURE, "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1,
            "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 16, "v_head_dim": 16,
            "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
        },
        ["q_a_proj", "kv_b_proj", "o_proj"],
    ),
    "glm4": ({}, ["q_proj", "gate_up_proj"]),
    "gptj": ({"n_layer": 2, "n_head": 4, "rotary_dim": 8}, ["q_proj", "fc_in"]),
    "nemotron": ({}, ["q_proj", "up_proj"]),
    "bloom": ({"n_layer": 2, "n_head": 4}, ["query_key_value", "dense_h_to_4h"]),
    "opt": ({"ffn_dim": 96, "word_embed_proj_dim": 64}, ["q_proj", "fc1"]),
    "starcoder2": ({}, ["q_proj", "c_fc"]),
}  # fmt: skip


@pytest.mark.check(after=4)
@pytest.mark.trust(after=12)
@pytest.mark.parametrize("family", CASES)
def test_folder_has_the_logits_of_peft(family: str, zoo: Zoo, tokenizer: Any, tmp_path: Path) -> None:
    changes, targets = CASES[family]
    base = save_checkpoint(make_model(family, 100, **changes), tmp_path / "base", tokenizer)
    with Registry(tmp_path / "home") as registry:
        registry.add_base("base", base)
        for name, rank in (("code", 4), ("law", 2)):
            train(base, tmp_path / name, target_modules=targets, r=rank)
            registry.add_expert(name, tmp_path / name, base="base", data=[zoo.train[name]], settings=COUNTS)
            registry.export(name, tmp_path / f"{name} again", as_lora=True)
            files = ("adapter_config.json", "adapter_model.safetensors")
            assert all(
                (tmp_path / name / file).read_bytes() == (tmp_path / f"{name} again" / file).read_bytes()
                for file in files
            )
        registry.compose(["code", "law"], tmp_path / "out", TO)
        registry.verify()
    model = loaded(tmp_path / "out")
    assert has_our_code(tmp_path / "out")
    for number, name in enumerate(("code", "law")):
        with force_expert(model, number):
            assert torch.equal(logits(model), peft_logits(base, tmp_path / name))
    assert len(chosen_of(model).unique()) == 2
    rows = torch.cat([logits(model, row[None]) for row in IDS])  # in a batch each text has its own experts
    torch.testing.assert_close(logits(model), rows, **CLOSE)
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    text = IDS[:1, :12]
    assert len(chosen_of(model, torch.cat([text, model.generate(text, **options)[:, 12:]], dim=1)).unique()) == 2
    kept, again = (model.generate(text, use_cache=cached, **options) for cached in (True, False))
    assert torch.equal(kept, again)
    model.generate(text, num_beams=2, **options)


@pytest.fixture(scope="module")
def mixture(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_model("mixtral", 100, num_local_experts=2)
    return save_checkpoint(made, tmp_path_factory.mktemp("mixture") / "base", tokenizer)


@pytest.fixture
def registry(mixture: Path, zoo: Zoo, tmp_path: Path) -> Any:
    with Registry(tmp_path / "home") as opened:
        opened.add_base("base", mixture)
        yield opened


def test_what_needs_its_layers_is_refused(registry: Registry, mixture: Path, zoo: Zoo, tmp_path: Path) -> None:
    adapter, data = train(mixture, tmp_path / "code", target_modules=["q_proj"]), [zoo.train["code"]]
    with pytest.raises(InvalidInputError, match="so that only tokens can be counted") as told:
        registry.add_expert("code", adapter, base="base", data=data, settings=PassSettings(tokens=512))
    assert told.value.hint == "add --sites counts"
    with pytest.raises(CheckpointError, match="so that an expert of them is an adapter of a registered base model"):
        registry.add_expert("code", mixture, data=data, settings=COUNTS, allow_unrelated=True)
    assert [one.name for one in registry.versions()] == ["base"]
    for name in ("code", "law"):
        registry.add_expert(name, adapter, base="base", data=[zoo.train[name]], settings=COUNTS)
    for recipe in (Recipe(), *(Recipe(to=to) for to in ("dense", "ensemble", "hetero"))):
        with pytest.raises(UnsupportedFamilyError, match="adapters of them can be composed, and nothing else"):
            registry.compose(["code", "law"], tmp_path / "out", recipe)
    assert not (tmp_path / "out").exists()
    assert registry.check(mixture).hosts == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target_modules": ["embed_tokens"]}, "changes model.embed_tokens.weight, and of MixtralForCausalLM low-rank"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["norm"]}, "changes model.layers.0.input_layernorm.weight"),
    ],
)
def test_adapter_of_other_layers_is_refused(
    options: dict[str, Any], said: str, registry: Registry, mixture: Path, zoo: Zoo, tmp_path: Path
) -> None:
    adapter = train(mixture, tmp_path / "code", **options)
    with pytest.raises(CheckpointError, match=said):
        registry.add_expert("code", adapter, base="base", data=[zoo.train["code"]], settings=COUNTS)


def test_base_of_other_tensors_is_refused(registry: Registry, mixture: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(mixture, tmp_path / "bad")
    settings = json.loads((bad / "config.json").read_bytes())
    for change, said in (
        ({"num_hidden_layers": 3}, "its tensors are not those of MixtralForCausalLM: missing keys"),
        ({"intermediate_size": 32}, "its tensors are not those of MixtralForCausalLM: mismatched keys"),
        ({"num_hidden_layers": 10**9}, "config.json asks for 1,000,000,000 layers"),
        ({"hidden_size": "wide"}, "transformers refuses it"),
    ):
        (bad / "config.json").write_text(json.dumps(settings | change))
        with pytest.raises(CheckpointError, match=said):
            registry.add_base("bad", bad)
    assert [one.name for one in registry.versions()] == ["base"]
