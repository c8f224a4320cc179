"""Proves: a plan tells what will be written without writing, and refuses members that cannot stand together.

Experts that differ in attention alone are remarked on when checked, registered and planned.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from registry import Recipe, Registry
from registry.errors import IncompatibleError, InvalidInputError
from tests.conftest import Zoo, files_of
from tests.models import make_model, save_checkpoint
from tests.registry.composition.composed import FEW, PAIR, add_model, json_of


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("recipe", [Recipe(), Recipe(top_k=2), Recipe(router="ridge")], ids=["1", "2", "ridge"])
def test_plan_tells_what_is_written_and_writes_nothing(filled: Registry, tmp_path: Path, recipe: Recipe) -> None:
    before = files_of(filled.home.path)
    plan = filled.plan(["math", "code", "law"], recipe)
    assert files_of(filled.home.path) == before
    filled.compose(["math", "code", "law"], tmp_path / "moe", recipe)
    tensors = load_file(tmp_path / "moe" / "model.safetensors")
    assert {tensor.name: tensor.shape for tensor in plan.tensors} == {n: tuple(t.shape) for n, t in tensors.items()}
    assert plan.parameters == sum(tensor.numel() for tensor in tensors.values())
    assert plan.nbytes == sum(tensor.nbytes for tensor in tensors.values())
    experts = sum(tensor.numel() for name, tensor in tensors.items() if ".experts." in name)
    top_k = recipe.output.top_k(recipe, 3)
    assert top_k is not None
    assert plan.active_parameters == plan.parameters - experts // 3 * (3 - top_k)
    assert plan.names == ["code", "law", "math"]
    assert plan.peak_bytes > 0


def test_memory_of_passes_is_estimated(filled: Registry) -> None:
    """One dense model and its sums, with several passes the mixture, which is larger."""
    ridge = Recipe(router="ridge")
    plain, once, twice = (filled.plan(["math", "code"], ridge.replace(refine=n)) for n in range(3))
    assert plain.peak_bytes < once.peak_bytes < twice.peak_bytes
    assert twice.peak_bytes > plain.peak_bytes + plain.nbytes


def test_digest_is_a_function_of_members_and_recipe(filled: Registry) -> None:
    recipes: tuple[dict[str, Any], ...] = (
        {},
        {"vocabulary": "shared"},
        {"router": "ridge"},
        {"top_k": 2},
        {"weights": {"code": 2.0}},
    )
    digests = [filled.plan(PAIR, Recipe(**recipe)).digest for recipe in recipes]
    assert digests[0] == filled.plan(["math@1", "code"]).digest
    others = [filled.plan(names).digest for names in (["code", "law"], ["code"])]
    assert len({*digests, *others}) == len(digests) + len(others)


def test_base_matters_only_where_it_is_used(filled: Registry, zoo: Zoo, tmp_path: Path, tokenizer: Any) -> None:
    plain, of_base = filled.plan(["code"]).document, Recipe(trunk="base")
    with pytest.raises(
        InvalidInputError, match="trunk method 'regmean' takes no base model, and base 'base'"
    ) as caught:
        filled.plan(["code"], base="base")
    assert caught.value.hint == "drop --base, or use that model's trunk: --trunk base"
    assert plain["base"] is None
    filled.add_base("other", zoo.experts["law"])
    assert filled.plan(["code"]).document == plain
    with pytest.raises(IncompatibleError, match="needs the base model, and there are 2: base, other") as ambiguous:
        filled.plan(["code"], of_base)
    assert ambiguous.value.hint == "name one: --base base"
    assert filled.plan(["code"], of_base, base="other").document["base"]["name"] == "other"
    with pytest.raises(InvalidInputError, match="law is an expert, not a base model"):
        filled.plan(["code"], of_base, base="law")
    filled.add_base(
        "stranger", save_checkpoint(make_model("llama", 100, num_hidden_layers=1), tmp_path / "s", tokenizer)
    )
    with pytest.raises(IncompatibleError, match="code@1 and stranger@1 cannot stand in one composition"):
        filled.plan(["code"], of_base, base="stranger")
    with Registry(tmp_path / "without") as registry:
        registry.add_expert("code", zoo.experts["code"])
        with pytest.raises(IncompatibleError, match="and none is registered") as missing:
            registry.plan(["code"], of_base)
    assert missing.value.hint == "reg add-base NAME CKPT"


def test_a_subset_names_each_expert_once(filled: Registry, zoo: Zoo) -> None:
    filled.add_expert("code", zoo.experts["law"])
    for experts, message in (
        ([], "a composition needs at least one expert"),
        (["code@2", "code"], "code is named more than once"),
        (["code@1", "code@2"], "one version of an expert"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            filled.plan(experts)


STRANGERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "family": ("mistral", {}, "family llama against mistral"),
    "width": ("llama", {"hidden_size": 64}, r"hidden_size: 32 against 64"),
    "rope": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "rope_parameters: {"),
    "tied": ("llama", {"tie_word_embeddings": True}, "tie_word_embeddings: False against True"),
}


@pytest.mark.check(after=2)
@pytest.mark.parametrize("case", sorted(STRANGERS))
def test_members_that_differ_are_refused_with_the_difference(filled: Registry, tmp_path: Path, case: str) -> None:
    family, changes, message = STRANGERS[case]
    add_model(filled, tmp_path / "stranger", make_model(family, 101, **changes))
    with pytest.raises(IncompatibleError, match=f"code@1 and stranger@1 cannot stand in one composition: .*{message}"):
        filled.compose(["stranger", "code"], tmp_path / "moe")
    assert not (tmp_path / "moe").exists()


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(to="dense")], ids=["moe", "dense"])
def test_of_different_longest_texts_the_least_is_taken(filled: Registry, tmp_path: Path, recipe: Recipe) -> None:
    add_model(filled, tmp_path / "longer", make_model("llama", 121, max_position_embeddings=256))
    plan = filled.compose(["longer", "code"], tmp_path / "out", recipe)
    assert "it takes texts of 128 tokens, as code does; others take up to 256" in plan.notes
    assert json_of(tmp_path / "out", "config.json")["max_position_embeddings"] == 128
    alone = filled.compose(["longer"], tmp_path / "alone", recipe)
    assert alone.lead.architecture.max_position_embeddings == 256
    assert not [note for note in alone.notes if "it takes texts" in note]


def test_of_ropes_that_depend_on_the_longest_text_it_must_agree(registry: Registry, tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    for number, longest in ((101, 128), (102, 256)):
        model = make_model("llama", number, max_position_embeddings=longest, rope_parameters=dict(rope))
        add_model(registry, tmp_path / f"e{number}", model)
    with pytest.raises(IncompatibleError, match="max_position_embeddings: 128 against 256"):
        registry.plan(["e101", "e102"])


@pytest.mark.check
def test_mixed_dtypes_ask_for_one(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    folder = add_model(filled, tmp_path / "half", make_model("llama", 105), dtype=torch.bfloat16)
    with pytest.raises(IncompatibleError, match=r"different dtypes \(code@1 float32, half@1 bfloat16\)") as caught:
        filled.plan(["code", "half"])
    assert caught.value.hint == "choose one: --dtype bfloat16"
    for dtype, size in (("float32", 4), ("bfloat16", 2), ("float16", 2)):
        plan = filled.compose(["code", "half"], tmp_path / dtype, Recipe(dtype=dtype))
        assert plan.nbytes == size * plan.parameters
        tensors = load_file(tmp_path / dtype / "model.safetensors")
        assert {tensor.dtype for tensor in tensors.values()} == {getattr(torch, dtype)}
    tensors = load_file(folder / "model.safetensors")
    own = tensors["model.layers.0.mlp.up_proj.weight"]
    name = "model.layers.1.block_sparse_moe.experts.1.w3.weight"  # one layer later, and wider by zeros
    assert torch.equal(load_file(tmp_path / "float32" / "model.safetensors")[name][:, : own.shape[1]], own.float())
    tensors["model.norm.weight"] = tensors["model.norm.weight"].float()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    filled.add_expert("mixed", folder, data=[zoo.train["law"]], settings=FEW)
    assert {t.dtype for t in filled.plan(["mixed"]).tensors} == {"float32", "bfloat16"}  # alone, each keeps its own
    with pytest.raises(IncompatibleError, match=r"tensor model\.norm\.weight has different dtypes"):
        filled.plan(["half", "mixed"])


EQUAL = "its MLPs equal those of base@1: a mixture routes between MLPs"


def attention_alone(folder: Path, tokenizer: Any, seed: int) -> Path:
    """Write the zoo's base model with other attention, as an adapter of attention alone would make it."""
    model, own = make_model("llama", 100), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "self_attn" in name:
                weight.add_(torch.randn(weight.shape, generator=own) * 0.02)
    return save_checkpoint(model, folder, tokenizer)


@pytest.mark.check
def test_equal_mlps_are_remarked_on(
    registry: Registry, zoo: Zoo, tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    remarks: list[str] = []
    monkeypatch.setattr("registry.registration.register.remark", lambda progress, text: remarks.append(text))
    registry.add_base("base", zoo.base)
    registry.add_expert("math", zoo.experts["math"])
    for checkpoint in (zoo.experts["math"], zoo.base):  # the same weights as the base model's: no checkpoint of its own
        assert not [note for note in registry.check(checkpoint).notes if "MLPs equal" in note]
    assert remarks == []
    first, second = (attention_alone(tmp_path / str(seed), tokenizer, seed) for seed in (0, 1))
    assert [note for note in registry.check(first).notes if note.startswith(EQUAL)]
    registry.add_expert("first", first, data=[zoo.train["law"]], settings=FEW)
    assert [text for text in remarks if text.startswith(EQUAL)]
    registry.add_expert("second", second, data=[zoo.train["law"]], settings=FEW)
    note = "the MLPs of first, second are equal, so routing between them changes nothing"
    assert [one for one in registry.plan(["first", "math", "second"], Recipe()).notes if one.startswith(note)]
    for names, recipe in ((["first", "math"], Recipe()), (["first", "second"], Recipe(to="ensemble"))):
        assert not [one for one in registry.plan(names, recipe).notes if "MLPs of" in one]
