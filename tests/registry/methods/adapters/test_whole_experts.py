"""Proves: experts that were trained in full stand beside adapters, at the rank that is asked for, with their own norms.

At full rank an expert is itself up to the rounding of its factors, which is what the tolerance is for.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from registry import Recipe, Registry
from registry.errors import InvalidInputError, OutputError
from registry.maths import spectrum, truncated
from registry.runtime.gates import force_expert
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint
from tests.registry.checkpoint.test_adapter import train
from tests.registry.methods.adapters.test_compose_adapters import (
    CLOSE,
    COUNTS,
    IDS,
    assert_tokens_have_their_experts,
    loaded,
    logits,
    peft_logits,
)
from tests.remarks import Remarks

FULL = Recipe(to="adapters", rank=1000)
FAMILIES = ["llama", "qwen2", "qwen3", "gemma", "gemma3_text", "gpt_neox", "phi3", "stablelm"]


@pytest.fixture
def registry(zoo: Zoo, tmp_path: Path) -> Iterator[Registry]:
    with Registry(tmp_path / "home") as opened:
        opened.add_base("base", zoo.base)
        for name in ("code", "law"):
            opened.add_expert(name, zoo.experts[name], data=[zoo.train[name]], settings=COUNTS)
        yield opened


@pytest.mark.parametrize("family", FAMILIES)
def test_expert_of_full_rank_is_itself(family: str, zoo: Zoo, tokenizer: Any, tmp_path: Path) -> None:
    """With its embedding, tied or not, its norms of every kind, and its biases; and so it generates."""
    folders = {
        name: save_checkpoint(_noisy(make_model(family, seed), seed), tmp_path / name, tokenizer)
        for seed, name in enumerate(("base", "code", "law"), start=100)
    }
    with Registry(tmp_path / "home") as registry:
        registry.add_base("base", folders["base"], remote_code=True)
        for name in ("code", "law"):
            data = [zoo.train[name]]
            registry.add_expert(name, folders[name], data=data, settings=COUNTS, remote_code=True)
        plan = registry.compose(["code", "law"], tmp_path / "out", FULL)
    assert any("code 100.0%, law 100.0%" in note for note in plan.notes)
    model = loaded(tmp_path / "out")
    weights = [*model.parameters(), model.evidence, model.thresholds, model.pair_evidence]
    assert plan.active_parameters < plan.parameters == sum(part.numel() for part in weights)
    own = {}
    for number, name in enumerate(("code", "law")):
        own[name] = logits(loaded(folders[name]))
        with force_expert(model, number):
            torch.testing.assert_close(logits(model), own[name], atol=1e-3, rtol=1e-3)
    mask = torch.ones(2, 14, dtype=torch.int64)
    greedy: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    kinds = [model.generate(IDS[:, :14], attention_mask=mask, use_cache=use, **greedy) for use in (True, False)]
    assert torch.equal(*kinds)


def _noisy(model: Any, seed: int) -> Any:
    """Return a model whose norms and biases are its own too."""
    draw = torch.Generator().manual_seed(seed)
    for part in model.parameters():
        if part.ndim == 1:
            part.data += 0.1 * torch.randn(part.shape, generator=draw)
    return model


def test_each_token_has_the_vectors_of_its_expert(registry: Registry, tmp_path: Path) -> None:
    registry.compose(["code", "law"], tmp_path / "out", FULL)
    assert "as near to an expert that was trained in full as" in (tmp_path / "out" / "README.md").read_text()
    model, seen = loaded(tmp_path / "out"), dict[str, Any]()
    layer = model.get_submodule("model.layers.0.input_layernorm")
    layer.register_forward_hook(lambda module, inputs, output: seen.update(x=inputs[0], y=output))
    chosen = torch.arange(IDS.numel()).view(IDS.shape) % 2
    model.adapter_gate.register_forward_hook(
        lambda gate, inputs, output: torch.nn.functional.one_hot(chosen.flatten(), 2).to(output).log()
    )
    logits(model)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    for number in range(2):
        x, y = (seen[key][chosen == number] for key in "xy")
        size = x.float().pow(2).mean(-1, keepdim=True).add(model.config.rms_norm_eps).rsqrt()
        expected = x * size * tensors["model.layers.0.input_layernorm.own_weight"][number].float()
        torch.testing.assert_close(y, expected, **CLOSE)
    model = loaded(tmp_path / "out")
    assert_tokens_have_their_experts(model, "model.layers.0.input_layernorm")


def test_ranks_keep_what_they_say(registry: Registry, zoo: Zoo) -> None:
    base, code = (load_file(folder / "model.safetensors") for folder in (zoo.base, zoo.experts["code"]))
    deltas = {name: code[name].float() - tensor.float() for name, tensor in base.items() if tensor.ndim == 2}
    plan = registry.plan(["code"], Recipe(to="adapters", rank=3))
    assert {*plan.parts.ranks.by_member[0].values()} == {3}
    lost = 0.0
    for delta in deltas.values():
        a, b = truncated(delta, 3)
        lost += float((b @ a - delta).pow(2).sum())
    total = sum(float(delta.double().pow(2).sum()) for delta in deltas.values())
    assert plan.parts.ranks.kept[0] == pytest.approx(1 - lost / total, abs=1e-9)
    for delta in deltas.values():
        torch.testing.assert_close(spectrum(delta).sqrt(), torch.linalg.svdvals(delta.double()), atol=1e-6, rtol=0)
    usual = registry.plan(["code", "law"], Recipe(to="adapters"))
    assert all(0.9 <= kept < 0.95 for kept in usual.parts.ranks.kept)
    assert plan.digest != usual.digest


@pytest.mark.parametrize("nbytes", [1, 5_000, 20_000])
def test_bytes_are_not_exceeded(registry: Registry, nbytes: int) -> None:
    plan = registry.plan(["code", "law"], Recipe(to="adapters", max_bytes=nbytes))
    taken = sum(one.nbytes for one in plan.tensors if ".lora_" in one.name)
    assert nbytes - 1000 < taken <= nbytes


def test_adapters_stay_exact_beside_whole_experts(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """What an adapter trained in full, as a saved embedding, has a rank too."""
    saved = train(zoo.base, tmp_path / "saved", target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])
    registry.add_expert("saved", saved, base="base", data=[zoo.train["math"]], settings=COUNTS)
    plan = registry.plan(["code", "saved"], Recipe(to="adapters", rank=2))
    assert plan.parts.ranks.by_member[1] == {"model.embed_tokens.weight": 2, "lm_head.weight": 2}
    assert {one.kind[0] for one in plan.parts.changes[1].low_rank.values()} == {4}


def test_both_ways_to_choose_ranks_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="both choose the ranks"):
        Recipe(to="adapters", rank=2, max_bytes=5)


@pytest.mark.parametrize("family", ["llama", "gemma", "gpt_neox"])
def test_peft_takes_an_expert_that_was_trained_in_full(family: str, zoo: Zoo, tokenizer: Any, tmp_path: Path) -> None:
    """With the logits of the composed folder, of one rank and of several; norms and biases are the base model's."""
    before, after = make_model(family, 1), make_model(family, 2)
    for name, part in after.named_parameters():
        if part.ndim == 1:
            part.data = before.get_parameter(name).data.clone()
    base, code = (
        save_checkpoint(model, tmp_path / name, tokenizer) for name, model in (("base", before), ("code", after))
    )
    heard = Remarks()
    with Registry(tmp_path / "home", progress=heard) as registry:
        registry.add_base("base", base, remote_code=True)
        data = [zoo.train["code"]]
        registry.add_expert("code", code, data=data, settings=COUNTS, remote_code=True, allow_unrelated=True)
        for rank in (3, None):
            registry.compose(["code"], tmp_path / f"moe-{rank}", Recipe(to="adapters", rank=rank))
            registry.export("code", tmp_path / f"lora-{rank}", as_lora=True, rank=rank)
            found = peft_logits(base, tmp_path / f"lora-{rank}")
            torch.testing.assert_close(found, logits(loaded(tmp_path / f"moe-{rank}")), atol=1e-3, rtol=1e-3)
        with pytest.raises(OutputError, match="exists and is not empty"):
            registry.export("code", tmp_path / "lora-3", as_lora=True, rank=3)
    assert any("ranks from 3 to 3 keep" in line for line in heard.sentences)
    config = json.loads((tmp_path / "lora-3" / "adapter_config.json").read_bytes())
    assert (config["r"], config["lora_alpha"], config["rank_pattern"]) == (3, 3, {})
    tensors = load_file(tmp_path / "lora-3" / "adapter_model.safetensors")
    assert sum("lora_embedding_A" in name for name in tensors) == 1
    assert any(name.endswith("lm_head.lora_A.weight") for name in tensors)


def test_norms_that_a_folder_of_an_adapter_lacks_are_said(zoo: Zoo, tmp_path: Path) -> None:
    heard = Remarks()
    with Registry(tmp_path / "home", progress=heard) as registry:
        registry.add_base("base", zoo.base)
        registry.add_expert("code", zoo.experts["code"], data=[zoo.train["code"]], settings=COUNTS)
        registry.export("code", tmp_path / "out", as_lora=True, rank=2)
    assert any("norms and biases that were trained too are left out" in line for line in heard.sentences)
