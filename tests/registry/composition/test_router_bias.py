"""Proves: a bias of an anchored composition is added to its logits exactly, and at −∞ leaves the base model.

And: the order of registering or naming and an opt-out change no byte, the folder is written again to the byte, training
keeps the bias, and what cannot have one is refused. Experts that were trained on a frozen trunk are in the composition
to the bit.
"""

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

from registry import ExpertTraining, MixtureTraining, PassSettings, Recipe, Registry, TrainSettings
from registry.checkpoint import Checkpoint
from registry.checkpoint.model_files import ROUTER_FILE
from registry.checkpoint.trained_files import RouterRows, pack_rows
from registry.errors import IncompatibleError, InvalidInputError, UnsupportedFamilyError
from registry.member import load_member
from registry.runtime.gates import force_expert, gates
from registry.runtime.loading import has_our_code, load_model
from tests.conftest import Zoo, files_of
from tests.models import make_model, save_checkpoint, train_tokenizer
from tests.registry.composition.composed import json_of, tensors_of
from tests.registry.hosts.test_hosts import load

IDS = torch.randint(1, 320, (3, 40), generator=torch.Generator().manual_seed(0))
COUNTS = PassSettings(tokens=64, seq_len=32, sites="counts")
NAMES = ("law.beside", "math.beside")
EVERYONE = (*NAMES, "base")
ANCHORED = Recipe(router="anchored", trunk="base")
BIASED = ANCHORED.replace(bias={"law.beside": -0.5, "math.beside": -2.0})


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
    model = load(folder, getattr(torch, dtype))
    with torch.no_grad(), nullcontext() if forced is None else force_expert(model, forced):
        logits: Tensor = model(input_ids=IDS).logits
    return logits


@pytest.mark.check(after=1)
@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_a_bias_is_added_exactly(filled: Registry, zoo: Zoo, tmp_path: Path, temperature: float) -> None:
    add_beside(filled, zoo, tmp_path, bias={"math.beside": [0.375, -0.125]})
    plan = filled.compose(EVERYONE, tmp_path / "moe", BIASED.replace(temperature=temperature))
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
    unbiased, base = ANCHORED.replace(top_k=top_k, dtype=dtype), outputs(zoo.base, dtype)
    filled.compose(EVERYONE, tmp_path / "moe", unbiased.replace(bias=dict.fromkeys(NAMES, bias)))
    assert torch.equal(outputs(tmp_path / "moe", dtype), base)
    filled.compose(EVERYONE, tmp_path / "unbiased", unbiased)
    assert not torch.equal(outputs(tmp_path / "unbiased", dtype), base)


@pytest.mark.check
def test_orders_and_an_opt_out_change_no_byte(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    trained = {"math.beside": [0.375, -0.125]}
    add_beside(filled, zoo, tmp_path, bias=trained)
    filled.compose(EVERYONE, tmp_path / "asked", BIASED)
    filled.compose(EVERYONE[::-1], tmp_path / "named", BIASED)
    assert files_of(tmp_path / "named") == files_of(tmp_path / "asked")
    with Registry(tmp_path / "other") as other:
        other.add_base("base", zoo.base)
        add_beside(other, zoo, tmp_path / "again", NAMES[::-1], trained)
        other.compose(EVERYONE, tmp_path / "registered", BIASED)
        assert files_of(tmp_path / "registered") == files_of(tmp_path / "asked")
    filled.compose(EVERYONE, tmp_path / "trained", ANCHORED)  # a trained bias alone takes the same host
    for name in ("asked", "trained"):
        document = json_of(tmp_path / name)
        assert ("bias" in document["recipe"]) == (name == "asked")
        assert "modeling_biased.py" in document["files"]
        assert has_our_code(tmp_path / name)
        assert filled.reproduce(tmp_path / name).is_same
    plain, zero = (filled.plan(["law.beside", "base"], ANCHORED.replace(bias=b)) for b in ({}, {"law.beside": 0.0}))
    assert (plain.model_type, "bias" in plain.document["recipe"], zero.digest) == ("mixtral", False, plain.digest)
    source = tmp_path / "asked" / "modeling_biased.py"
    source.write_bytes(source.read_bytes() + b"raise SystemExit\n")
    assert not has_our_code(tmp_path / "asked")
    pair = ANCHORED.replace(bias={"law.beside": -0.5})
    filled.compose(["law.beside", "base"], tmp_path / "pair", pair)
    filled.opt_out("math.beside", purge=True)
    filled.compose(["law.beside", "base"], tmp_path / "after", pair)
    assert files_of(tmp_path / "after") == files_of(tmp_path / "pair")


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_bias_joins_the_softmax_over_all_experts(filled: Registry, zoo: Zoo, tmp_path: Path, k: int) -> None:
    add_beside(filled, zoo, tmp_path, bias={"math.beside": [0.375, -0.125]})
    plan = filled.compose(EVERYONE, tmp_path / "moe", BIASED.replace(top_k=k, gating="softmax-topk"))
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
def test_training_routers_keeps_the_bias_and_mlps_train_it(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    add_beside(filled, zoo, tmp_path)
    filled.compose(EVERYONE, tmp_path / "moe", BIASED)
    data = [str(zoo.train["law"])]
    routers = TrainSettings(steps=4, batch_size=2, seq_len=32, lr=0.05, device="cpu")
    filled.train_router(tmp_path / "moe", tmp_path / "routers", data, routers)
    mlps = MixtureTraining("mlps", tokens=4 * 2 * 32, batch_size=2, seq_len=32, device="cpu", lr=0.01)
    done = filled.train(tmp_path / "moe", tmp_path / "mlps", data, mlps)
    assert "router_bias" not in done.document["training"]
    before = tensors_of(tmp_path / "moe")
    assert sum(name.endswith("mlp.gate.bias") for name in before) == 2
    for what, trained in (("routers", "mlp.gate.weight"), ("mlps", ".mlp.")):
        after = tensors_of(tmp_path / what)
        assert before.keys() == after.keys()
        changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
        assert changed == {name for name in before if trained in name}
        load(tmp_path / what)
        assert filled.reproduce(tmp_path / what).is_same


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
    recipe = ANCHORED.replace(bias={"law": -1e4})
    assert registry.compose(["law", "base"], tmp_path / "moe", recipe).model_type == f"routed_{family}"
    assert torch.equal(outputs(tmp_path / "moe"), outputs(base))


@pytest.mark.check
def test_wrong_biases_are_refused_first(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    add_beside(filled, zoo, tmp_path)
    for message, hint, experts, bias in (
        ("no public expert to stand back from", "--public", NAMES[:1], {"law.beside": -1.0}),
        ("bias for base, the public expert", "--bias", EVERYONE, {"base": -1.0}),
        ("bias for nobody, which is not a member", "members are", EVERYONE, {"nobody": -1.0}),
    ):
        with pytest.raises(InvalidInputError, match=message) as caught:
            filled.plan(experts, ANCHORED.replace(bias=bias))
        assert hint in str(caught.value.hint)
    with pytest.raises(InvalidInputError, match=r"law.beside is 0.5; .* stand back from the public one") as positive:
        ANCHORED.replace(bias={"law.beside": 0.5})
    assert "--bias law.beside=-0.5" in str(positive.value.hint)
    with pytest.raises(UnsupportedFamilyError, match="'mixtral' has no router bias"):
        filled.plan(EVERYONE, BIASED.replace(host="mixtral"))
    write_beside(zoo.base, tmp_path / "stranger", "0" * 64, 3)
    filled.add_expert("stranger", tmp_path / "stranger", data=[zoo.train["law"]], settings=COUNTS)
    with pytest.raises(IncompatibleError, match="beside another public expert"):
        filled.plan(["stranger", "base"], ANCHORED.replace(bias={"stranger": -1.0}))
    content = filled.resolve("base").content
    assert content is not None
    moved = write_beside(zoo.base, tmp_path / "moved", content["weights"], 4)
    weights = load_file(moved / "model.safetensors")
    weights["model.norm.weight"] += 0.5
    save_file(weights, moved / "model.safetensors", {"format": "pt"})
    filled.add_expert("moved", moved, data=[zoo.train["law"]], settings=COUNTS)
    with pytest.raises(IncompatibleError, match=r"model.norm.weight of moved@1 differs"):
        filled.plan(["moved", "base"], ANCHORED.replace(bias={"moved": -1.0}))


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
