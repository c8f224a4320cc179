"""Proves: what a composed folder holds is what recipe and members say, tensor by tensor."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors import safe_open
from safetensors.torch import load_file

from registry import Recipe, Registry
from registry.errors import InvalidInputError, OutputError, RegError, StorageError
from registry.families.sites import MLP_INPUT
from registry.io import model_folder as folder_module
from registry.io.model_folder import MARKER, composed_of
from registry.maths.router.ridge import ridge
from tests.conftest import EXPERTS, Zoo, files_of
from tests.digests import digests_of
from tests.models import write_jsonl

GATE = "model.layers.{}.block_sparse_moe.gate.weight"


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


@pytest.mark.parametrize("trunk", ["mean", "base"])
def test_every_tensor_is_what_it_should_be(filled: Registry, zoo: Zoo, tmp_path: Path, trunk: str) -> None:
    recipe = Recipe(
        trunk=trunk, router="ridge", lam=0.3, weights={"law": 3.0}, top_k=2, temperature=0.5, normalize=True
    )
    plan = filled.compose(["math", "law", "code"], tmp_path / "moe", recipe)
    found = tensors_of(tmp_path / "moe")
    dense = {name: load_file(path / "model.safetensors") for name, path in (zoo.experts | {"base": zoo.base}).items()}
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
        statistics = [member.statistics(MLP_INPUT, layer) for member in plan.members]
        expected = (ridge(statistics, [1.0, 3.0, 1.0], 0.3) / 0.5).float()
        assert torch.equal(found.pop(GATE.format(layer)), expected)
    assert not found


def test_stored_statistics_are_the_collected_ones(filled: Registry, zoo: Zoo) -> None:
    from registry.statistics import file as statistics_file

    collected = statistics_file.load(zoo.experts["math"] / "statistics.safetensors")
    member = filled.member(filled.resolve("math"))
    assert [member.statistics(MLP_INPUT, layer) for layer in range(2)] == list(collected.sites[MLP_INPUT])


def test_lam_weights_and_temperature_reach_the_router(filled: Registry, tmp_path: Path) -> None:
    def gates(name: str, **recipe: Any) -> torch.Tensor:
        settings: dict[str, Any] = {"router": "ridge", "normalize": True, "temperature": 1.0}
        filled.compose(["code", "math"], tmp_path / name, Recipe(**settings | recipe))
        return torch.stack([tensors_of(tmp_path / name)[GATE.format(layer)] for layer in range(2)])

    plain = gates("plain")
    assert torch.allclose(plain.norm(dim=-1), torch.ones(2, 2), atol=1e-6)
    assert not torch.equal(gates("lam", lam=1e4), plain)
    assert not torch.equal(gates("weights", weights={"code": 5.0}), plain)
    assert torch.equal(gates("temperature", temperature=0.25), plain * 4)


def test_shards_hold_the_same_tensors(filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.compose(["code", "math"], tmp_path / "one")
    monkeypatch.setattr(folder_module, "SHARD_BYTES", 40_000)
    filled.compose(["code", "math"], tmp_path / "many")
    shards = sorted(path.name for path in (tmp_path / "many").glob("*.safetensors"))
    assert len(shards) > 2
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    one, many = tensors_of(tmp_path / "one"), tensors_of(tmp_path / "many")
    assert one.keys() == many.keys() == index["weight_map"].keys()
    assert all(torch.equal(one[name], many[name]) for name in one)
    for name, shard in index["weight_map"].items():
        with safe_open(tmp_path / "many" / shard, framework="pt") as file:
            assert name in file.keys()  # noqa: SIM118
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in one.values())
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "many", output_loading_info=True)
    assert not any(loaded[1].values())


def test_document_tells_recipe_members_and_the_digest_of_every_file(filled: Registry, tmp_path: Path) -> None:
    plan = filled.compose(["math", "code"], tmp_path / "moe", Recipe(trunk="base"))
    document = json.loads((tmp_path / "moe" / MARKER).read_text())
    assert document["digest"] == plan.digest
    assert document["recipe"] == plan.recipe.document(["code", "math"])
    assert document["members"] == [{"name": name, "digest": filled.resolve(name).digest} for name in ("code", "math")]
    assert document["base"] == {"name": "base", "digest": filled.resolve("base").digest}
    assert document["files"] == digests_of(files_of(tmp_path / "moe"))
    assert document["format"] == 2
    assert composed_of(tmp_path / "moe") == {m["name"]: m["digest"] for m in document["members"]}
    assert composed_of(tmp_path) == {}


@pytest.mark.check
def test_card_has_metadata_and_members(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    registry.add_expert("code", zoo.experts["code"], license="apache-2.0")
    registry.add_expert("math", zoo.experts["math"], license="apache-2.0")
    registry.add_expert("law", zoo.experts["law"], license="mit")
    registry.add_expert("german", zoo.experts["german"], license="gpl-2.0")
    registry.compose(["code", "math"], tmp_path / "same")
    registry.compose(["code", "law"], tmp_path / "both")
    registry.compose(["code", "german"], tmp_path / "mixed")
    page = (tmp_path / "same" / "README.md").read_text()
    metadata: Any = ModelCard(page).data
    assert metadata.license == "apache-2.0"
    assert metadata.library_name == "transformers"
    assert "mixtral" in metadata.tags
    assert f"| 0 | code | `{registry.resolve('code').digest}` | apache-2.0 | 1 |" in page
    both: Any = ModelCard.load(tmp_path / "both" / "README.md").data
    assert both.license == "apache-2.0"  # the more restrictive one
    assert ModelCard.load(tmp_path / "mixed" / "README.md").data.to_dict().get("license") is None


def test_checkpoint_without_tokenizer_composes_without_one(
    bare: Path, zoo: Zoo, registry: Registry, tmp_path: Path
) -> None:
    for path in bare.glob("tokenizer*"):
        path.unlink()
    (bare / "statistics.safetensors").write_bytes((zoo.experts["code"] / "statistics.safetensors").read_bytes())
    registry.add_expert("code", bare)
    registry.compose(["code"], tmp_path / "moe")
    assert not list((tmp_path / "moe").glob("tokenizer*"))


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
    filled.compose(["code"], tmp_path / "moe")
    before = files_of(tmp_path / "moe")
    with pytest.raises(OutputError, match="is not empty"):
        filled.compose(["law"], tmp_path / "moe")
    assert files_of(tmp_path / "moe") == before
    filled.compose(["law"], tmp_path / "moe", force=True)
    assert files_of(tmp_path / "moe") != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "moe"]


def test_leftover_of_a_crash_is_removed(filled: Registry, tmp_path: Path) -> None:
    stale = tmp_path / ".moe.partial"
    stale.mkdir()
    (stale / "model.safetensors").write_bytes(b"half")
    filled.compose(["code"], tmp_path / "moe")
    assert not stale.exists()
    assert (tmp_path / "moe" / MARKER).is_file()


def test_too_little_space_is_told_before_writing(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(StorageError, match=r"needs [\d,]+ bytes, its disk has 1,000 free"):
        filled.compose(["code"], tmp_path / "moe")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


def test_disk_that_fills_up_leaves_nothing(filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.compose(["law"], tmp_path / "moe")
    before = files_of(tmp_path / "moe")

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("registry.output.folder_output.write_weights", full)
    with pytest.raises(StorageError, match="cannot be written: No space left on device"):
        filled.compose(["code"], tmp_path / "moe", force=True)
    assert files_of(tmp_path / "moe") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "moe"]


def test_member_withdrawn_while_composing_stops_it(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(*arguments: Any, **options: Any) -> Any:
        filled.opt_out("math")
        return folder_module.write_weights(*arguments, **options)

    monkeypatch.setattr("registry.output.folder_output.write_weights", meanwhile)
    with pytest.raises(RegError, match="math@1 was opted out"):
        filled.compose(["code", "math"], tmp_path / "moe")
    assert not (tmp_path / "moe").exists()
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


@pytest.mark.check
def test_every_expert_is_named_in_order(filled: Registry, tmp_path: Path) -> None:
    filled.compose(EXPERTS, tmp_path / "moe")
    assert list(composed_of(tmp_path / "moe")) == sorted(EXPERTS)
