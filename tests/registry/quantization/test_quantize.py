"""Proves: a folder in few bits loads with transformers, has the matrices that GPTQ makes of the members' Grams, and
everything else to the byte; what cannot be is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from registry import Recipe, Registry
from registry.composition.manifest import ComposedFolder
from registry.errors import CheckpointError, ConflictError, IncompatibleError, InvalidInputError, OutputError
from registry.families.sites import ATTENTION_INPUT, ATTENTION_OUTPUT, MLP_INPUT
from registry.maths.gptq import Grid, gptq, inverse_factor, nearest
from registry.member import load_member
from registry.progress import silent
from registry.quantization.quantize import Source, write_quantized
from registry.quantization.schemes import SCHEMES
from tests.conftest import SETTINGS, Zoo
from tests.models import logits, make_model, save_checkpoint, train_tokenizer

pytest.importorskip("compressed_tensors")

PAIR = ["code", "german"]
GRIDS = {"w4a16": Grid.integers(4), "w8a16": Grid.integers(8), "fp8": Grid.float8()}


def unpacked(tensors: dict[str, torch.Tensor], module: str, scheme: str) -> torch.Tensor:
    """Return the weights that packed tensors, or those in float8, stand for."""
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    if scheme == "fp8":
        numbers = tensors[f"{module}.weight"]
        assert numbers.dtype == torch.float8_e4m3fn
    else:
        shape = torch.Size(tensors[f"{module}.weight_shape"].tolist())
        numbers = unpack_from_int32(tensors[f"{module}.weight_packed"], SCHEMES[scheme].bits, shape)
    scales = tensors[f"{module}.weight_scale"]
    group = numbers.shape[1] // scales.shape[1]
    weights: torch.Tensor = numbers.float() * scales.float().repeat_interleave(group, dim=1)
    return weights


@pytest.mark.parametrize("scheme", [*SCHEMES])
def test_matrices_are_those_of_gptq_with_the_members_grams(filled: Registry, tmp_path: Path, scheme: str) -> None:
    """Of integers; float8 is to the nearest."""
    filled.compose(PAIR, tmp_path / "moe")
    made = filled.quantize(tmp_path / "moe", tmp_path / "few", scheme)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("moe", "few"))
    members = [load_member(filled._workspace, filled.resolve(name)) for name in PAIR]
    layers, hidden = members[0].architecture.num_hidden_layers, members[0].architecture.hidden_size
    by_statistics = 0
    for number in range(layers + 2):
        is_added, at = number in (0, layers + 1), f"model.layers.{number}"
        for expert, member in enumerate(members):
            for name in ("w1", "w2", "w3"):
                module = f"{at}.block_sparse_moe.experts.{expert}.{name}"
                weight = before[f"{module}.weight"]
                group = made.group or weight.shape[1]
                expected = nearest(weight, GRIDS[scheme], group, torch.float32)
                if name != "w2" and not is_added and scheme != "fp8":
                    own = member.statistics(MLP_INPUT, number - 1).gram
                    gram = torch.eye(weight.shape[1], dtype=torch.float64) * own.diagonal().mean()
                    gram[:hidden, :hidden] = own
                    expected = gptq(weight, inverse_factor(gram), GRIDS[scheme], group, torch.float32)
                    by_statistics += 1
                assert torch.equal(unpacked(after, module, scheme), expected.weights)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            module = f"{at}.self_attn.{name}"
            if is_added:
                assert torch.equal(after.pop(f"{module}.weight"), before[f"{module}.weight"])
                continue
            site = ATTENTION_OUTPUT if name == "o_proj" else ATTENTION_INPUT
            first, second = (member.statistics(site, number - 1).gram for member in members)
            own = first + second
            weight = before[f"{module}.weight"]
            gram = torch.eye(weight.shape[1], dtype=torch.float64) * own.diagonal().mean()
            gram[: len(own), : len(own)] = own
            group = made.group or weight.shape[1]
            if scheme == "fp8":
                expected = nearest(weight, GRIDS[scheme], group, torch.float32)
            else:
                expected = gptq(weight, inverse_factor(gram), GRIDS[scheme], group, torch.float32)
                by_statistics += 1
            assert torch.equal(unpacked(after, module, scheme), expected.weights)
    assert made.by_statistics == by_statistics
    rounded = {name.removesuffix("_scale") for name in after if name.endswith(".weight_scale")}
    kept = {name for name in after if name.endswith(".weight")} - rounded
    assert len(rounded) == made.matrices
    assert made.kept == 2 * 4 + (layers + 2) + 1  # attention of the added layers, routers, the head
    assert kept | rounded | {name for name in before if "self_attn" in name} == {*before}
    assert all(torch.equal(after[name], before[name]) for name in kept)
    assert all(own < plain for plain, own in made.errors.values())
    assert {*made.errors} == (set() if scheme == "fp8" else {"experts", "attention"})


@pytest.mark.check
@pytest.mark.parametrize("recipe", [Recipe(), Recipe(host="qwen3_moe"), Recipe(to="dense", trunk="mean")])
@pytest.mark.parametrize("scheme", [*SCHEMES])
def test_transformers_loads_the_rounded_matrices(
    registry: Registry, zoo: Zoo, tmp_path: Path, recipe: Recipe, scheme: str
) -> None:
    family = "qwen3" if recipe.host == "qwen3_moe" else "llama"
    for number, name in enumerate(PAIR, start=901):
        folder = save_checkpoint(make_model(family, number), tmp_path / name, train_tokenizer())
        registry.add_expert(name, folder, data=[zoo.train[name]], settings=SETTINGS)
    registry.compose(PAIR, tmp_path / "whole", recipe)
    registry.quantize(tmp_path / "whole", tmp_path / "few", scheme)
    whole, few = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "few"))
    for name in whole:
        if f"{name}_scale" in few:
            whole[name] = unpacked(few, name.removesuffix(".weight"), scheme)
    ids = torch.arange(1, 65)[None]
    exact = logits(tmp_path / "whole", ids)
    save_file(whole, tmp_path / "whole" / "model.safetensors", {"format": "pt"})
    rounded, found = logits(tmp_path / "whole", ids), logits(tmp_path / "few", ids)
    assert not torch.equal(found, exact)
    if scheme == "fp8":  # attention's inputs are rounded too, a scale a token
        assert not torch.equal(found, rounded)
        config = json.loads((tmp_path / "few" / "config.json").read_text())
        config["quantization_config"]["dequantize"] = True  # whole weights, so that no input is rounded
        (tmp_path / "few" / "config.json").write_text(json.dumps(config))
        found = logits(tmp_path / "few", ids)
    assert torch.equal(found, rounded)


def test_without_statistics_everything_is_rounded_to_the_nearest(filled: Registry, tmp_path: Path) -> None:
    filled.compose(PAIR, tmp_path / "moe")
    made = filled.quantize(tmp_path / "moe", tmp_path / "a", statistics=False)
    assert (made.by_statistics, made.errors) == (0, {})
    with Registry(tmp_path / "empty") as empty:
        empty.quantize(tmp_path / "moe", tmp_path / "b")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    made_anew = {"composition.json", "README.md", "config.json", "model.safetensors"}
    assert {*files} == {path.name for path in (tmp_path / "moe").iterdir()} - {"composition.json"}
    copied = {*files} - made_anew
    assert "tokenizer_config.json" in copied
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "moe" / name).read_bytes() for name in copied)
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)
    assert "rounded to w4a16" in (tmp_path / "a" / "README.md").read_text()
    config = json.loads((tmp_path / "a" / "config.json").read_text())["quantization_config"]
    assert {"lm_head", "model.layers.0.self_attn.q_proj", "model.layers.1.block_sparse_moe.gate"} <= {*config["ignore"]}


def test_what_cannot_be_is_refused_before_anything_is_written(filled: Registry, tmp_path: Path) -> None:
    moe, out = tmp_path / "moe", tmp_path / "out"
    filled.compose(PAIR, moe, Recipe(host="remote-code"))
    with pytest.raises(IncompatibleError, match="brings a modelling file"):
        filled.quantize(moe, out)
    filled.compose(PAIR, moe, force=True)
    with pytest.raises(InvalidInputError, match="'fp4' is not one of"):
        filled.quantize(moe, out, "fp4")
    assert not out.exists()
    filled.quantize(moe, out)
    with pytest.raises(OutputError, match="exists and is not empty"):
        filled.quantize(moe, out)
    with pytest.raises(OutputError, match="contain one another"):
        filled.quantize(moe, moe / "few")
    tensors = load_file(moe / "model.safetensors")
    tensors["model.layers.1.self_attn.q_proj.weight"][0, 0] = torch.nan
    save_file(tensors, moe / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"q_proj\.weight has weights that are no finite numbers"):
        write_quantized(Source.of(ComposedFolder.read(moe)), tmp_path / "other", "w4a16", lambda *_: None, silent)
    with pytest.raises(CheckpointError, match="was changed since"):
        filled.quantize(moe, tmp_path / "other")
    filled.opt_out("code")
    with pytest.raises(ConflictError, match="holds code@1, which was opted out"):
        filled.quantize(moe, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_experts_that_are_stacked_in_one_tensor_are_refused(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    folder = save_checkpoint(make_model("granite", 901), tmp_path / "granite", train_tokenizer())
    registry.add_expert("granite", folder, data=[zoo.train["code"]], settings=SETTINGS)
    registry.compose(["granite"], tmp_path / "moe", Recipe(router="ridge"))
    with pytest.raises(IncompatibleError, match="is a granitemoe, whose layers have no matrix of its own"):
        registry.quantize(tmp_path / "moe", tmp_path / "out")
