"""Proves: a bias of an anchored composition is added to its logits exactly, and at −∞ leaves the base model.

And: the order of registering or naming and an opt-out change no byte, the folder is written again to the byte, training
keeps the bias, and what cannot have one is refused. Experts that were trained on a frozen trunk are in the composition
to the bit.
"""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from registry import ExpertTraining, MixtureTraining, PassSettings, Recipe, Registry, TrainSettings
from registry.checkpoint import Checkpoint
from registry.checkpoint.router_rows import ROUTER_FILE, RouterRows, pack_rows
from registry.composition.compose import plan_composition
from registry.composition.trace import route
from registry.errors import IncompatibleError, InvalidInputError, UnsupportedFamilyError
from registry.member import load_member
from registry.runtime.gates import force_expert, gates
from registry.runtime.loading import has_our_code, load_model, quiet_transformers
from tests.conftest import Zoo, files_of
from tests.models import make_model, save_checkpoint, train_tokenizer

IDS = torch.randint(1, 320, (3, 40), generator=torch.Generator().manual_seed(0))
COUNTS = PassSettings(tokens=64, seq_len=32, sites="counts", folds=1)
NAMES = ("law.beside", "math.beside")
EVERYONE = (*NAMES, "base")
ANCHORED = Recipe(router="anchored", trunk="base")
BIASED = Recipe(router="anchored", trunk="base", bias={"law.beside": -0.5, "math.beside": -2.0})


def write_beside(base: Path, folder: Path, anchor: str, seed: int, bias: Sequence[float] | None = None) -> Path:
    """Write an expert whose trunk is the base model's, with router rows."""
    shutil.copytree(base, folder)
    checkpoint, generator = Checkpoint(base, remote_code=True), torch.Generator().manual_seed(seed)
    weights = load_file(base / "model.safetensors")
    for name in checkpoint.mlp:
        weights[name] += 0.3 * torch.randn(weights[name].shape, generator=generator).to(weights[name].dtype)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    shape = checkpoint.architecture.num_hidden_layers, checkpoint.architecture.hidden_size
    rows = torch.randn(shape, generator=generator).numpy()
    trained = None if bias is None else np.array(bias, dtype=np.float32)
    (folder / ROUTER_FILE).write_bytes(pack_rows(RouterRows(anchor, rows, trained)))
    return folder


def add_beside(
    registry: Registry, zoo: Zoo, folder: Path, names: Sequence[str] = NAMES, bias: Mapping[str, Sequence[float]] = {}
) -> None:
    """Register experts beside the base model, some with trained biases."""
    content = registry.resolve("base").content
    assert content is not None
    for name in names:
        path = write_beside(zoo.base, folder / name, content["weights"], NAMES.index(name), bias.get(name))
        registry.add_expert(name, path, data=[zoo.train[name.partition(".")[0]]], settings=COUNTS)


def outputs(folder: Path, dtype: str = "float32", forced: int | None = None) -> Tensor:
    """Return the logits of a folder, with every token sent to one expert if `forced` says so.

    As users load it: our own passes multiply a dense model's matrices by a faster library than those of experts.
    """
    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), trust_remote_code=has_our_code(folder)
        )
    with torch.no_grad(), nullcontext() if forced is None else force_expert(model, forced):
        logits: Tensor = model(input_ids=IDS).logits
    return logits


@pytest.mark.check(after=1)
@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_a_bias_is_added_exactly(filled: Registry, zoo: Zoo, tmp_path: Path, temperature: float) -> None:
    add_beside(filled, zoo, tmp_path, bias={"math.beside": [0.375, -0.125]})
    recipe = Recipe(router="anchored", trunk="base", bias=BIASED.bias, temperature=temperature)
    plan = filled.compose(EVERYONE, tmp_path / "moe", recipe)
    assert plan.model_type == "routed_llama"
    assert any("routers have a bias" in note for note in plan.notes)
    expected = [[0.0, -0.5, -1.625], [0.0, -0.5, -2.125]]  # base, law, math: asked for, plus trained
    model = load_model(tmp_path / "moe", "float32", "cpu")
    members = [load_member(filled._workspace, filled.resolve(name)) for name in sorted(EVERYONE)]
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    for gate, biases in zip(gates(model), expected, strict=True):
        assert isinstance(gate.module.bias, Tensor)
        assert (gate.module.bias * temperature).tolist() == biases
        rows = torch.stack([member.router_row(gate.layer) for member in members])
        assert torch.equal(gate.weight, rows / temperature)
        wanted = (x @ rows.T + torch.tensor(biases)) / temperature
        assert torch.allclose(gate.module(x), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("top_k", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("bias", [-1e4, -1e30])
def test_at_minus_infinity_it_is_the_base_model(
    filled: Registry, zoo: Zoo, tmp_path: Path, top_k: int, dtype: str, bias: float
) -> None:
    add_beside(filled, zoo, tmp_path, bias={"law.beside": [0.5, 1.0]})
    recipe = Recipe(router="anchored", trunk="base", bias=dict.fromkeys(NAMES, bias), top_k=top_k, dtype=dtype)
    filled.compose(EVERYONE, tmp_path / "moe", recipe)
    assert torch.equal(outputs(tmp_path / "moe", dtype), outputs(zoo.base, dtype))
    unbiased = Recipe(router="anchored", trunk="base", top_k=top_k, dtype=dtype)
    filled.compose(EVERYONE, tmp_path / "unbiased", unbiased)
    assert not torch.equal(outputs(tmp_path / "unbiased", dtype), outputs(zoo.base, dtype))


@pytest.mark.check
def test_more_bias_gives_the_public_expert_more(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    add_beside(filled, zoo, tmp_path)
    shares = []
    for number, bias in enumerate((0.0, -2.0, -8.0)):
        recipe = Recipe(router="anchored", trunk="base", bias=dict.fromkeys(NAMES, bias), top_k=1)
        filled.compose(EVERYONE, tmp_path / str(number), recipe)
        shares.append(route(tmp_path / str(number), "the court party shall hereby prove", "cpu").shares()["base"])
    assert shares == sorted(shares)
    assert shares[0] < shares[2]


@pytest.mark.check
def test_orders_and_an_opt_out_change_no_byte(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    trained = {"math.beside": [0.375, -0.125]}
    add_beside(filled, zoo, tmp_path, bias=trained)
    filled.compose(EVERYONE, tmp_path / "moe", BIASED)
    filled.compose(EVERYONE[::-1], tmp_path / "named", BIASED)
    assert files_of(tmp_path / "named") == files_of(tmp_path / "moe")
    with Registry(tmp_path / "other") as other:
        other.add_base("base", zoo.base)
        add_beside(other, zoo, tmp_path / "again", NAMES[::-1], trained)
        other.compose(EVERYONE, tmp_path / "registered", BIASED)
        assert files_of(tmp_path / "registered") == files_of(tmp_path / "moe")
    pair = Recipe(router="anchored", trunk="base", bias={"law.beside": -0.5})
    filled.compose(["law.beside", "base"], tmp_path / "pair", pair)
    filled.opt_out("math.beside", purge=True)
    filled.compose(["law.beside", "base"], tmp_path / "after", pair)
    assert files_of(tmp_path / "after") == files_of(tmp_path / "pair")


@pytest.mark.check
def test_a_folder_is_written_again_to_the_byte(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    add_beside(filled, zoo, tmp_path, bias={"law.beside": [0.5, 1.0]})
    filled.compose(EVERYONE, tmp_path / "asked", BIASED)
    filled.compose(EVERYONE, tmp_path / "trained", ANCHORED)  # a trained bias alone takes the same host
    for name in ("asked", "trained"):
        document = json.loads((tmp_path / name / "composition.json").read_bytes())
        assert ("bias" in document["recipe"]) == (name == "asked")
        assert "modeling_biased.py" in document["files"]
        assert has_our_code(tmp_path / name)
        assert filled.reproduce(tmp_path / name).is_same
    plain = filled.plan(["math.beside", "base"], ANCHORED)
    assert (plain.model_type, "bias" in plain.document["recipe"]) == ("mixtral", False)
    zero = Recipe(router="anchored", trunk="base", bias={"math.beside": 0.0})
    assert filled.plan(["math.beside", "base"], zero).digest == plain.digest
    source = tmp_path / "asked" / "modeling_biased.py"
    source.write_bytes(source.read_bytes() + b"raise SystemExit\n")
    assert not has_our_code(tmp_path / "asked")


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_bias_joins_the_softmax_over_all_experts(filled: Registry, zoo: Zoo, tmp_path: Path, k: int) -> None:
    add_beside(filled, zoo, tmp_path, bias={"math.beside": [0.375, -0.125]})
    recipe = Recipe(router="anchored", trunk="base", bias=BIASED.bias, top_k=k, gating="softmax-topk")
    plan = filled.compose(EVERYONE, tmp_path / "moe", recipe)
    assert plan.model_type == "routed_llama"
    assert has_our_code(tmp_path / "moe")
    model = load_model(tmp_path / "moe", "float32", "cpu")
    for layer, gate in enumerate(gates(model)):
        x = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
        block: Any = gate.block
        logits = block.gate(x).double().tolist()
        assert any(block.gate.bias.tolist()), layer
        for token, row in zip(x, logits, strict=True):
            total = sum(math.exp(one) for one in row)
            kept = torch.tensor(row).argsort(descending=True)[:k].tolist()
            expected = sum(math.exp(row[e]) / total * block.experts[e](token[None])[0] for e in kept)
            assert torch.allclose(block(token[None, None])[0, 0], expected, rtol=1e-4, atol=1e-5)
    assert filled.reproduce(tmp_path / "moe").is_same


@pytest.mark.check
def test_training_keeps_the_bias(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    add_beside(filled, zoo, tmp_path)
    filled.compose(EVERYONE, tmp_path / "moe", BIASED)
    settings = TrainSettings(steps=4, batch_size=2, seq_len=32, lr=0.05, device="cpu")
    filled.train_router(tmp_path / "moe", tmp_path / "trained", [str(zoo.train["law"])], settings)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("moe", "trained"))
    assert before.keys() == after.keys()
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert changed == {name for name in before if name.endswith("mlp.gate.weight")}
    assert sum(name.endswith("mlp.gate.bias") for name in before) == 2
    load_model(tmp_path / "trained", "float32", "cpu")
    assert filled.reproduce(tmp_path / "trained").is_same


@pytest.mark.check
def test_a_bias_trains_with_the_mlps(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    add_beside(filled, zoo, tmp_path)
    filled.compose(EVERYONE, tmp_path / "moe", BIASED)
    settings = MixtureTraining(train="mlps", tokens=4 * 2 * 32, batch_size=2, seq_len=32, device="cpu", lr=0.01)
    done = filled.train(tmp_path / "moe", tmp_path / "trained", [str(zoo.train["law"])], settings)
    assert "router_bias" not in done.document["training"]
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("moe", "trained"))
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert changed == {name for name in before if ".mlp." in name}
    assert sum(name.endswith("mlp.gate.bias") for name in changed) == 2
    assert filled.reproduce(tmp_path / "trained").is_same


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("family", ["gpt_neox", "qwen3", "gemma2", "olmo2"])
def test_other_families_carry_one(registry: Registry, zoo: Zoo, tmp_path: Path, family: str) -> None:
    base = save_checkpoint(make_model(family, 100), tmp_path / "base", train_tokenizer())
    registry.add_base("base", base, remote_code=True)
    content = registry.resolve("base").content
    assert content is not None
    path = write_beside(base, tmp_path / "law", content["weights"], 0, [0.25, -0.25])
    registry.add_expert("law", path, data=[zoo.train["law"]], settings=COUNTS, remote_code=True)
    recipe = Recipe(router="anchored", trunk="base", bias={"law": -1e4})
    assert registry.compose(["law", "base"], tmp_path / "moe", recipe).model_type == f"routed_{family}"
    assert torch.equal(outputs(tmp_path / "moe"), outputs(base))


@pytest.mark.check
def test_wrong_biases_are_refused_first(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    add_beside(filled, zoo, tmp_path)
    cases: list[tuple[type[Exception], str, str, Sequence[str], dict[str, Any]]] = [
        (InvalidInputError, "no public expert to stand back from", "--public", NAMES, {}),
        (InvalidInputError, "no public expert to stand back from", "--public", NAMES[:1], {}),
        (InvalidInputError, "bias for base, the public expert", "--bias", EVERYONE, {"base": -1.0}),
        (InvalidInputError, "bias for nobody, which is not a member", "members are", EVERYONE, {"nobody": -1.0}),
    ]
    for kind, message, hint, experts, more in cases:
        bias = more or {"law.beside": -1.0}
        with pytest.raises(kind, match=message) as caught:
            plan_composition(filled._workspace, experts, Recipe(router="anchored", trunk="base", bias=bias))
        assert hint in str(getattr(caught.value, "hint", ""))
    with pytest.raises(InvalidInputError, match=r"law.beside is 0.5; .* stand back from the public one") as positive:
        Recipe(router="anchored", trunk="base", bias={"law.beside": 0.5})
    assert "--bias law.beside=-0.5" in str(positive.value.hint)
    with pytest.raises(InvalidInputError, match="finite"):
        Recipe(router="anchored", trunk="base", bias={"law.beside": -float("inf")})
    with pytest.raises(UnsupportedFamilyError, match="'mixtral' has no router bias"):
        filled.plan(EVERYONE, Recipe(router="anchored", trunk="base", bias=BIASED.bias, host="mixtral"))
    write_beside(zoo.base, tmp_path / "stranger", "0" * 64, 3)
    filled.add_expert("stranger", tmp_path / "stranger", data=[zoo.train["law"]], settings=COUNTS)
    with pytest.raises(IncompatibleError, match="beside another public expert"):
        filled.plan(["stranger", "base"], Recipe(router="anchored", trunk="base", bias={"stranger": -1.0}))
    content = filled.resolve("base").content
    assert content is not None
    moved = write_beside(zoo.base, tmp_path / "moved", content["weights"], 4)
    weights = load_file(moved / "model.safetensors")
    weights["model.norm.weight"] += 0.5
    save_file(weights, moved / "model.safetensors", {"format": "pt"})
    filled.add_expert("moved", moved, data=[zoo.train["law"]], settings=COUNTS)
    with pytest.raises(IncompatibleError, match=r"model.norm.weight of moved@1 differs"):
        filled.plan(["moved", "base"], Recipe(router="anchored", trunk="base", bias={"moved": -1.0}))


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("host", [None, "remote-code"])
def test_an_expert_trained_on_a_frozen_trunk_is_there_to_the_bit(
    filled: Registry, zoo: Zoo, tmp_path: Path, dtype: str, host: str | None
) -> None:
    settings = ExpertTraining(tokens=4 * 2 * 32, batch_size=2, seq_len=32, lr=0.01, device="cpu", dtype="float32")
    for name in ("law", "math"):
        filled.train_expert(f"{name}.frozen", "base", [zoo.train[name]], settings)
    experts = ["law.frozen", "math.frozen"]
    filled.compose(experts, tmp_path / "moe", Recipe(router="ridge", trunk="base", top_k=1, host=host, dtype=dtype))
    for number, name in enumerate(experts):
        filled.export(name, tmp_path / name)
        own = outputs(tmp_path / name, dtype)
        assert torch.equal(outputs(tmp_path / "moe", dtype, number), own)
        assert not torch.equal(own, outputs(zoo.base, dtype))
