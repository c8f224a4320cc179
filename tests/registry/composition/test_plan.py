"""Proves: a plan tells what will be written without writing, and refuses members that cannot stand together."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from registry import PassSettings, Recipe, Registry
from registry.composition.refit.token_streams import BATCH_TOKENS
from registry.errors import IncompatibleError, InvalidInputError
from tests.conftest import EXPERTS, SETTINGS, Zoo, files_of
from tests.models import SIZES, make_model, save_checkpoint, sentences, train_tokenizer, write_jsonl


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
    assert plan.active_parameters == plan.parameters - experts // 3 * (3 - recipe.experts_per_token(3))
    assert plan.names == ["code", "law", "math"]
    assert plan.peak_bytes > 0


def test_memory_of_refits_is_estimated(filled: Registry) -> None:
    """A batch and the sums of a step count; two members' routers are less than the MLPs' sums."""
    ridge = Recipe(router="ridge")
    plain, trunk, mlps = (
        filled.plan(["math", "code"], recipe).peak_bytes
        for recipe in (ridge, replace(ridge, refine_trunk=True), replace(ridge, refine_mlp=True))
    )
    batch = 4 * BATCH_TOKENS * (4 * SIZES["intermediate_size"] + 8 * SIZES["hidden_size"])
    assert plain + batch < trunk <= mlps
    refined = filled.plan(["math", "code"], replace(ridge, refine_mlp=True, refine=2)).peak_bytes
    assert refined >= mlps


def test_digest_is_a_function_of_members_and_recipe(filled: Registry) -> None:
    def digest(*experts: str, **recipe: Any) -> str:
        return filled.plan(experts, Recipe(**recipe)).digest

    assert digest("code", "math") == digest("math@1", "code")
    different = [
        digest("code", "math"),
        digest("code", "law"),
        digest("code"),
        digest("code", "math", vocabulary="shared"),
        digest("code", "math", context_window=0.0),
        digest("code", "math", router="ridge"),
        digest("code", "math", router="ridge", lam=0.1),
        digest("code", "math", top_k=2),
        digest("code", "math", trunk="base"),
        digest("code", "math", weights={"code": 2.0}),
        digest("code", "math", temperature=0.5),
        digest("code", "math", dtype="bfloat16"),
    ]
    assert len(set(different)) == len(different)


def test_base_matters_only_where_it_is_used(filled: Registry, zoo: Zoo) -> None:
    plain = filled.plan(["code"]).document
    with pytest.raises(
        InvalidInputError, match="trunk method 'regmean' takes no base model, and base 'base' was"
    ) as caught:
        filled.plan(["code"], base="base")
    assert caught.value.hint == "drop --base, or use that model's trunk: --trunk base"
    assert plain["base"] is None
    filled.add_base("other", zoo.experts["law"])
    assert filled.plan(["code"]).document == plain
    with pytest.raises(IncompatibleError, match="needs the base model, and there are 2: base, other") as caught:
        filled.plan(["code"], Recipe(trunk="base"))
    assert caught.value.hint == "name one: --base base"
    chosen = filled.plan(["code"], Recipe(trunk="base"), base="other")
    assert chosen.document["base"]["name"] == "other"
    with pytest.raises(InvalidInputError, match="law is an expert, not a base model"):
        filled.plan(["code"], Recipe(trunk="base"), base="law")


def test_base_that_is_not_there_is_asked_for(registry: Registry, zoo: Zoo) -> None:
    registry.add_expert("code", zoo.experts["code"])
    with pytest.raises(IncompatibleError, match="and none is registered") as caught:
        registry.plan(["code"], Recipe(trunk="base"))
    assert caught.value.hint == "reg add-base NAME CKPT"


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        ([], "a composition needs at least one expert"),
        (["code", "code"], "code is named more than once"),
        (["code@1", "code"], "code is named more than once"),
    ],
)
def test_empty_and_duplicate_subsets_are_refused(filled: Registry, experts: list[str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        filled.plan(experts)


def test_two_versions_of_an_expert_do_not_stand_together(filled: Registry, zoo: Zoo) -> None:
    filled.add_expert("code", zoo.experts["law"])
    with pytest.raises(InvalidInputError, match="one version of an expert"):
        filled.plan(["code@1", "code@2"])


STRANGERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "family": ("mistral", {}, "family llama against mistral"),
    "width": ("llama", {"hidden_size": 64}, r"hidden_size: 32 against 64"),
    "MLP width": ("llama", {"intermediate_size": 96}, "intermediate_size: 64 against 96"),
    "depth": ("llama", {"num_hidden_layers": 1}, "num_hidden_layers: 2 against 1"),
    "rope": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "rope_parameters: {"),
    "tied": ("llama", {"tie_word_embeddings": True}, "tie_word_embeddings: False against True"),
}


@pytest.mark.check(after=2)
@pytest.mark.trust(after=5)
@pytest.mark.parametrize("case", sorted(STRANGERS))
def test_members_that_differ_are_refused_with_the_difference(
    filled: Registry, tmp_path: Path, tokenizer: Any, case: str
) -> None:
    family, changes, message = STRANGERS[case]
    folder = save_checkpoint(make_model(family, 101, **changes), tmp_path / "stranger", tokenizer)
    data = write_jsonl(tmp_path / "data.jsonl", sentences("law", 10))
    filled.add_expert("stranger", folder, data=[data], settings=PassSettings(tokens=64, seq_len=16, batch_size=2))
    with pytest.raises(IncompatibleError, match=f"code@1 and stranger@1 cannot stand in one composition: .*{message}"):
        filled.compose(["stranger", "code"], tmp_path / "moe")
    assert not (tmp_path / "moe").exists()


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(to="dense")], ids=["moe", "dense"])
def test_of_different_longest_texts_the_least_is_taken(
    filled: Registry, tmp_path: Path, tokenizer: Any, recipe: Recipe
) -> None:
    longer = make_model("llama", 121, max_position_embeddings=256)
    filled.add_expert("longer", save_checkpoint(longer, tmp_path / "longer", tokenizer), settings=SETTINGS)
    plan = filled.compose(["longer", "code"], tmp_path / "out", recipe)
    assert "it takes texts of 128 tokens, as code does; others take up to 256" in plan.notes
    assert json.loads((tmp_path / "out" / "config.json").read_text())["max_position_embeddings"] == 128
    alone = filled.compose(["longer"], tmp_path / "alone", recipe)
    assert alone.lead.architecture.max_position_embeddings == 256
    assert not [note for note in alone.notes if "it takes texts" in note]


def test_of_ropes_that_depend_on_the_longest_text_it_must_agree(
    registry: Registry, tmp_path: Path, tokenizer: Any
) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    for number, longest in ((101, 128), (102, 256)):
        model = make_model("llama", number, max_position_embeddings=longest, rope_parameters=dict(rope))
        folder = save_checkpoint(model, tmp_path / str(number), tokenizer)
        registry.add_expert(f"e{number}", folder, settings=SETTINGS)
    with pytest.raises(IncompatibleError, match="max_position_embeddings: 128 against 256"):
        registry.plan(["e101", "e102"])


def test_base_that_differs_is_refused(filled: Registry, tmp_path: Path, tokenizer: Any) -> None:
    folder = save_checkpoint(make_model("llama", 100, num_hidden_layers=1), tmp_path / "stranger", tokenizer)
    filled.add_base("stranger", folder)
    with pytest.raises(IncompatibleError, match="code@1 and stranger@1 cannot stand in one composition"):
        filled.plan(["code"], Recipe(trunk="base"), base="stranger")


def test_members_with_different_tokenizers_are_refused(filled: Registry, tmp_path: Path, zoo: Zoo) -> None:
    other = train_tokenizer(seed=1)
    folder = save_checkpoint(make_model("llama", 101), tmp_path / "stranger", other)
    data = write_jsonl(tmp_path / "data.jsonl", sentences("law", 10))
    filled.add_expert("stranger", folder, data=[data], settings=PassSettings(tokens=64, seq_len=16, batch_size=2))
    with pytest.raises(IncompatibleError, match=r"their tokenizers differ: token \d+ is '.+' against '.+'"):
        filled.plan(["code", "stranger"])


@pytest.mark.check
def test_mixed_dtypes_ask_for_one(filled: Registry, tmp_path: Path, tokenizer: Any) -> None:
    folder = save_checkpoint(make_model("llama", 105), tmp_path / "half", tokenizer, dtype=torch.bfloat16)
    data = write_jsonl(tmp_path / "data.jsonl", sentences("law", 10))
    filled.add_expert("half", folder, data=[data], settings=PassSettings(tokens=64, seq_len=16, batch_size=2))
    with pytest.raises(IncompatibleError, match=r"different dtypes \(code@1 float32, half@1 bfloat16\)") as caught:
        filled.plan(["code", "half"])
    assert caught.value.hint == "choose one: --dtype bfloat16"
    for dtype, size in (("float32", 4), ("bfloat16", 2), ("float16", 2)):
        plan = filled.compose(["code", "half"], tmp_path / dtype, Recipe(dtype=dtype))
        assert plan.nbytes == size * plan.parameters
        tensors = load_file(tmp_path / dtype / "model.safetensors")
        assert {tensor.dtype for tensor in tensors.values()} == {getattr(torch, dtype)}
    own = load_file(folder / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    name = "model.layers.1.block_sparse_moe.experts.1.w3.weight"  # one layer later, and wider by zeros
    assert torch.equal(load_file(tmp_path / "float32" / "model.safetensors")[name][:, : own.shape[1]], own.float())


def test_tensor_of_mixed_dtypes_asks_for_one(filled: Registry, tmp_path: Path, tokenizer: Any) -> None:
    from safetensors.torch import save_file

    folder = save_checkpoint(make_model("llama", 105), tmp_path / "mixed", tokenizer)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    data = write_jsonl(tmp_path / "data.jsonl", sentences("law", 10))
    filled.add_expert("mixed", folder, data=[data], settings=PassSettings(tokens=64, seq_len=16, batch_size=2))
    assert filled.plan(["mixed"]).dtype == "float32"  # alone, each tensor keeps its own
    assert {t.dtype for t in filled.plan(["mixed"]).tensors} == {"float32", "bfloat16"}
    with pytest.raises(IncompatibleError, match=r"tensor model\.norm\.weight has different dtypes"):
        filled.plan(["code", "mixed"])


def test_all_five_stand_together(filled: Registry) -> None:
    assert filled.plan(EXPERTS).names == sorted(EXPERTS)
