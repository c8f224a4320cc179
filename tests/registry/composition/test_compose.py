"""Proves: what a composed folder holds is what recipe and members say, tensor by tensor."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors import safe_open

from registry import Recipe, Registry
from registry.errors import InvalidInputError, OutputError, RegError, StorageError
from registry.families.sites import MLP_INPUT
from registry.io import model_folder as folder_module
from registry.io.model_folder import composed_of
from registry.statistics import file as statistics_file
from tests.conftest import Zoo, files_of
from tests.digests import digests_of
from tests.models import make_model, write_jsonl
from tests.registry.composition.composed import GATE, PAIR, add_model, json_of, tensors_of
from tests.registry.hosts.test_hosts import load
from tests.registry.maths.drawn import ridge


@pytest.mark.parametrize("trunk", ["mean", "base"])
def test_every_tensor_is_what_it_should_be(filled: Registry, zoo: Zoo, tmp_path: Path, trunk: str) -> None:
    recipe = Recipe(
        trunk=trunk, router="ridge", lam=0.3, weights={"law": 3.0}, top_k=2, temperature=0.5, normalize=True
    )
    plan = filled.compose(["math", "law", "code"], tmp_path / "moe", recipe)
    found = tensors_of(tmp_path / "moe")
    dense = {name: tensors_of(path) for name, path in (zoo.experts | {"base": zoo.base}).items()}
    for name in dense["base"]:
        if ".mlp." not in name:
            expected = dense["base"][name]
            if trunk == "mean":
                members = [dense[expert][name].double() for expert in ("code", "law", "math")]
                expected = ((members[0] + 3 * members[1] + members[2]) / 5).float()
            assert torch.equal(found.pop(name), expected), name
    for layer in range(2):
        for index, expert in enumerate(("code", "law", "math")):
            for theirs, ours in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
                name = f"model.layers.{layer}.block_sparse_moe.experts.{index}.{ours}.weight"
                assert torch.equal(found.pop(name), dense[expert][f"model.layers.{layer}.mlp.{theirs}.weight"])
        collected = [statistics_file.load(zoo.experts[name] / "statistics.safetensors") for name in plan.names]
        statistics = [one.sites[MLP_INPUT][layer] for one in collected]
        assert statistics == [member.statistics(MLP_INPUT, layer) for member in plan.members]
        expected = (ridge(statistics, [1.0, 3.0, 1.0], 0.3) / 0.5).float()
        assert torch.equal(found.pop(GATE.format(layer)), expected)
    assert not found


def test_shards_hold_the_same_tensors(filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.compose(PAIR, tmp_path / "one")
    monkeypatch.setattr(folder_module, "SHARD_BYTES", 40_000)
    filled.compose(PAIR, tmp_path / "many")
    shards = sorted(path.name for path in (tmp_path / "many").glob("*.safetensors"))
    assert len(shards) > 2
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    index = json_of(tmp_path / "many", "model.safetensors.index.json")
    one, many = tensors_of(tmp_path / "one"), tensors_of(tmp_path / "many")
    assert one.keys() == many.keys() == index["weight_map"].keys()
    assert all(torch.equal(one[name], many[name]) for name in one)
    for name, shard in index["weight_map"].items():
        with safe_open(tmp_path / "many" / shard, framework="pt") as file:
            assert name in file.keys()  # noqa: SIM118
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in one.values())
    load(tmp_path / "many")


def test_document_tells_recipe_members_and_the_digest_of_every_file(filled: Registry, tmp_path: Path) -> None:
    plan = filled.compose(["math", "code"], tmp_path / "moe", Recipe(trunk="base"))
    document = json_of(tmp_path / "moe")
    assert document["digest"] == plan.digest
    assert document["recipe"] == plan.recipe.document(["code", "math"])
    assert document["members"] == [{"name": name, "digest": filled.resolve(name).digest} for name in ("code", "math")]
    assert document["base"] == {"name": "base", "digest": filled.resolve("base").digest}
    assert document["files"] == digests_of(files_of(tmp_path / "moe"))
    assert document["format"] == 2
    assert composed_of(tmp_path / "moe") == {m["name"]: m["digest"] for m in document["members"]}
    assert list(composed_of(tmp_path / "moe")) == ["code", "math"]
    assert composed_of(tmp_path) == {}


@pytest.mark.check
def test_card_has_metadata_and_members(registry: Registry, zoo: Zoo, bare: Path, tmp_path: Path) -> None:
    """A checkpoint without a tokenizer composes without one."""
    for path in bare.glob("tokenizer*"):
        path.unlink()
    (bare / "statistics.safetensors").write_bytes((zoo.experts["code"] / "statistics.safetensors").read_bytes())
    for name, folder, license_id in (("code", zoo.experts["code"], "apache-2.0"), ("law", zoo.experts["law"], "mit")):
        registry.add_expert(name, folder, license=license_id)
    registry.add_expert("bare", bare, license="gpl-2.0")
    registry.compose(["code", "law"], tmp_path / "both")
    page = (tmp_path / "both" / "README.md").read_text()
    metadata: Any = ModelCard(page).data
    assert (metadata.license, metadata.library_name) == ("apache-2.0", "transformers")  # the more restrictive license
    assert "mixtral" in metadata.tags
    assert f"| 0 | code | `{registry.resolve('code').digest}` | apache-2.0 | 1 |" in page
    assert list((tmp_path / "both").glob("tokenizer*"))
    registry.compose(["bare"], tmp_path / "bare-alone")
    assert not list((tmp_path / "bare-alone").glob("tokenizer*"))


def test_output_that_is_there_is_not_touched(filled: Registry, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputError, match="exists and is not empty") as caught:
        filled.compose(["code"], full)
    assert caught.value.hint == "choose another --out"
    with pytest.raises(OutputError, match="was not composed by this program and is not deleted"):
        filled.compose(["code"], full, force=True)
    with pytest.raises(OutputError, match="exists and is not a folder"):
        filled.compose(["code"], full / "thesis.tex", force=True)
    (tmp_path / "link").symlink_to(full)
    with pytest.raises(OutputError, match="link is a symbolic link") as caught:
        filled.compose(["code"], tmp_path / "link", force=True)
    assert caught.value.hint == f"name the folder itself: --out {full}"
    assert files_of(full) == {"thesis.tex": b"years of work"}
    assert filled.compositions() == []


def test_empty_folder_is_taken_and_a_composition_is_replaced_by_force(filled: Registry, tmp_path: Path) -> None:
    (tmp_path / "moe").mkdir()
    (stale := tmp_path / ".moe.partial").mkdir()  # of a crash
    (stale / "model.safetensors").write_bytes(b"half")
    filled.compose(["code"], tmp_path / "moe")
    before = files_of(tmp_path / "moe")
    with pytest.raises(OutputError, match="is not empty"):
        filled.compose(["law"], tmp_path / "moe")
    assert files_of(tmp_path / "moe") == before
    filled.compose(["law"], tmp_path / "moe", force=True)
    assert files_of(tmp_path / "moe") != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "moe"]


def test_weight_beyond_float16_is_refused(registry: Registry, tokenizer: Any, tmp_path: Path) -> None:
    for name in ("large", "plain"):
        model = make_model("llama", 7)
        if name == "large":
            model.model.layers[1].mlp.up_proj.weight.data[3, 5] = 2e5  # and half of it beyond float16 as well
        add_model(registry, tmp_path / name, model, tokenizer, dtype=torch.bfloat16)
    recipes: tuple[Callable[..., Recipe], ...] = (
        Recipe,
        partial(Recipe, router="ridge"),
        partial(Recipe, to="dense", trunk="mean"),
        Recipe,
    )
    for recipe in recipes:
        with pytest.raises(InvalidInputError, match="that float16 cannot hold, beyond 65,504") as caught:
            registry.compose(["large", "plain"], tmp_path / "out", recipe(dtype="float16"))
        assert "--dtype bfloat16" in str(caught.value.hint)
        assert not (tmp_path / "out").exists()
    registry.compose(["large", "plain"], tmp_path / "out", Recipe(dtype="bfloat16"))
    registry.compose(["plain"], tmp_path / "half", Recipe(dtype="float16"))


def test_disk_without_space_leaves_nothing(filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.compose(["law"], tmp_path / "moe")
    before = files_of(tmp_path / "moe")

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    for name, put, message in (
        ("registry.destination.destination.write_weights", full, "cannot be written: No space left on device"),
        ("shutil.disk_usage", lambda _: SimpleNamespace(free=1000), r"needs [\d,]+ bytes, its disk has 1,000 free"),
    ):
        monkeypatch.setattr(name, put)
        with pytest.raises(StorageError, match=message):
            filled.compose(["code"], tmp_path / "moe", force=True)
        assert files_of(tmp_path / "moe") == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "moe"]


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(to="ensemble")], ids=["moe", "ensemble"])
def test_member_withdrawn_while_composing_stops_it(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Recipe
) -> None:
    def meanwhile(*arguments: Any, **options: Any) -> Any:
        filled.opt_out("math")
        return folder_module.write_weights(*arguments, **options)

    monkeypatch.setattr("registry.destination.destination.write_weights", meanwhile)
    with pytest.raises(RegError, match="math@1 was opted out"):
        filled.compose(["code", "math"], tmp_path / "moe", recipe)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]
    assert filled.compositions() == []


def test_router_that_cannot_be_solved_names_its_layer(bare: Path, registry: Registry, tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "data.jsonl", ["def return self"])
    registry.add_expert("code", bare, data=[data])  # fewer tokens than channels
    with pytest.raises(
        InvalidInputError, match=r"the router of layer 0 cannot be solved: .* not positive definite"
    ) as caught:
        registry.compose(["code"], tmp_path / "moe", Recipe(router="ridge", lam=0.0))
    assert caught.value.hint == "raise lam, for example --lam 0.1"
    assert not (tmp_path / "moe").exists()
