"""Proves: each family's composition loads in plain transformers without a stray key and computes what the experts do.

One expert: the same logits bit for bit. Several: each forced expert's logits are the dense expert's on the same trunk,
bit for bit, and two mixed by the router are the softmax mixture of the dense MLPs.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from registry import PassSettings, Recipe, Registry
from registry.families import FAMILIES
from registry.loading import quiet_transformers
from tests.models import logits, make_model, save_checkpoint, sentences, write_jsonl

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied, llama3 rope, wide heads": (
        "llama",
        {"tie_word_embeddings": True, "rope_parameters": LLAMA3, "head_dim": 16},
    ),
    "llama yarn rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral window": ("mistral", {"sliding_window": 8}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3 tied, attention bias": ("qwen3", {"head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}),
}
IDS = torch.randint(1, 320, (2, 48), generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Variant:
    """Checkpoints of a base and three experts, and the registry that holds them."""

    dense: dict[str, Path]
    registry: Registry


@pytest.fixture(scope="module", params=sorted(VARIANTS))
def variant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tokenizer: Any
) -> Iterator[Variant]:
    family, changes = VARIANTS[request.param]
    root = tmp_path_factory.mktemp("variant")
    dense = {
        name: save_checkpoint(make_model(family, 100 + seed, **changes), root / name, tokenizer)
        for seed, name in enumerate(("base", "code", "law", "math"))
    }
    data = write_jsonl(root / "data.jsonl", sentences("code", 20))
    with Registry(root / "home") as registry:
        registry.add_base("base", dense["base"])
        for name in ("code", "law", "math"):
            settings = PassSettings(tokens=128, seq_len=32, batch_size=2)
            registry.add_expert(name, dense[name], data=[data], settings=settings)
        yield Variant(dense, registry)


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Load as a user would, and fail on any key that is missing, unexpected or mismatched."""
    with quiet_transformers():
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    model, info = loaded
    assert not any(info.values()), info
    return model.eval()


def force(model: Any, expert: int) -> None:
    """Send every token to one expert."""

    def hook(_module: Any, _inputs: Any, output: Any) -> Any:
        router_logits, weights, index = output
        first = torch.zeros_like(weights)
        first[..., 0] = 1
        return router_logits, first, torch.full_like(index, expert)

    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            module._forward_hooks.clear()
            module.register_forward_hook(hook)


def with_mlp_of(trunk: Path, expert: Path, dtype: torch.dtype) -> Any:
    """Return the dense model that has the trunk of one folder and the MLPs of another."""
    model, other = load(trunk, dtype), load(expert, dtype).state_dict()
    model.load_state_dict({n: other[n] if ".mlp." in n else w for n, w in model.state_dict().items()})
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_composition_of_one_expert_is_the_dense_expert(variant: Variant, tmp_path: Path, dtype: str) -> None:
    variant.registry.compose(["math"], tmp_path / "moe", Recipe(dtype=dtype))
    kind = getattr(torch, dtype)
    moe = load(tmp_path / "moe", kind)
    own = load(variant.dense["math"], kind)
    with torch.no_grad():
        assert torch.equal(moe(input_ids=IDS).logits, own(input_ids=IDS).logits)
    prompt = {"input_ids": IDS[:, :8], "attention_mask": torch.ones_like(IDS[:, :8])}
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    assert torch.equal(moe.generate(**prompt, **options), own.generate(**prompt, **options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_forced_expert_computes_what_the_dense_one_does_on_that_trunk(
    variant: Variant, tmp_path: Path, dtype: torch.dtype
) -> None:
    variant.registry.compose(["math", "code", "law"], tmp_path / "moe", Recipe(trunk="base", top_k=2))
    moe = load(tmp_path / "moe", dtype)
    results = []
    for index, name in enumerate(("code", "law", "math")):
        force(moe, index)
        with torch.no_grad():
            results.append(moe(input_ids=IDS).logits)
            assert torch.equal(
                results[-1], with_mlp_of(variant.dense["base"], variant.dense[name], dtype)(input_ids=IDS).logits
            )
    assert (results[0] - results[1]).abs().max() > 0.1  # the test can fail: experts differ


def test_two_experts_mix_by_softmax_of_the_router(variant: Variant, tmp_path: Path) -> None:
    plan = variant.registry.compose(
        ["code", "law", "math"], tmp_path / "moe", Recipe(trunk="base", top_k=2, temperature=0.05)
    )
    family = FAMILIES[plan.members[0].content["family"]]
    moe = load(tmp_path / "moe")
    dense_mlps = [list(family.mlps(load(variant.dense[name]))) for name in ("code", "law", "math")]
    gates = [moe.get_parameter(_runtime_gate(moe, layer)) for layer in range(2)]
    reference = load(variant.dense["base"])

    def mixture(layer: int) -> Any:
        def hook(_module: Any, inputs: Any, _output: Any) -> Any:
            x = inputs[0]
            top, index = torch.topk(x @ gates[layer].T, 2)
            weight = torch.softmax(top, dim=-1)
            parts = torch.stack([mlps[layer](x) for mlps in dense_mlps], dim=-2)
            chosen = torch.gather(parts, -2, index[..., None].expand(*index.shape, x.shape[-1]))
            return (weight[..., None] * chosen).sum(-2)

        return hook

    for layer, module in enumerate(family.mlps(reference)):
        module.register_forward_hook(mixture(layer))
    with torch.no_grad():
        # The hosts take softmax before top-k and renormalise, which is the same up to rounding in float32.
        assert torch.allclose(moe(input_ids=IDS).logits, reference(input_ids=IDS).logits, rtol=1e-4, atol=1e-4)


def test_folder_is_what_other_tools_read(variant: Variant, tmp_path: Path) -> None:
    plan = variant.registry.compose(["code", "math"], tmp_path / "moe", Recipe(top_k=2))
    config = json.loads((tmp_path / "moe" / "config.json").read_text())
    own = json.loads((variant.dense["code"] / "config.json").read_text())
    assert config["architectures"] == [plan.host.class_name]
    assert config["model_type"] == plan.host.model_type
    for key in (
        "hidden_size",
        "num_hidden_layers",
        "vocab_size",
        "tie_word_embeddings",
        "rms_norm_eps",
        "eos_token_id",
    ):
        assert config[key] == own[key], key
    assert config["num_local_experts"] == 2
    assert config["num_experts_per_tok"] == 2
    assert config["rope_theta"] == own["rope_parameters"]["rope_theta"]
    assert config["rope_parameters"] == own["rope_parameters"]
    assert (config["rope_scaling"] is None) == (own["rope_parameters"]["rope_type"] == "default")
    assert config["dtype"] == config["torch_dtype"] == "float32"
    assert config["router_aux_loss_coef"] == 0.0
    assert "transformers_version" not in config
    assert isinstance(config["head_dim"], int)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "moe")
    assert (
        tokenizer("def return sum").input_ids
        == AutoTokenizer.from_pretrained(variant.dense["code"])("def return sum").input_ids
    )
    assert (tmp_path / "moe" / "generation_config.json").read_bytes() == (
        variant.dense["code"] / "generation_config.json"
    ).read_bytes()


def test_names_are_those_that_save_pretrained_writes(variant: Variant, tmp_path: Path) -> None:
    from safetensors import safe_open

    variant.registry.compose(["code", "math"], tmp_path / "moe")
    with quiet_transformers():
        load(tmp_path / "moe").save_pretrained(tmp_path / "again")
    shapes = []
    for folder in ("moe", "again"):
        with safe_open(tmp_path / folder / "model.safetensors", framework="pt") as file:
            shapes.append({name: file.get_slice(name).get_shape() for name in file.keys()})  # noqa: SIM118
    assert shapes[0] == shapes[1]


def test_every_family_is_tested() -> None:
    assert {family for family, _ in VARIANTS.values()} == set(FAMILIES)


def test_wrong_expert_would_be_seen(variant: Variant) -> None:
    assert (logits(variant.dense["code"], IDS) - logits(variant.dense["math"], IDS)).abs().max() > 0.1


def _runtime_gate(model: Any, layer: int) -> str:
    return f"model.layers.{layer}.mlp.gate.weight"
