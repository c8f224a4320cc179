"""Proves: a mixture of copies of a base model is that of the same model under several names, and lives like any other.

Of what is written, reproduced, trained, evaluated, pushed and opted out.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from registry import EnsembleRecipe, MixtureTraining, Recipe, Registry
from registry.composition import read_recipe, write_recipe
from registry.composition.manifest import CompositionManifest
from registry.errors import CalibrationError, CheckpointError, ConflictError, InvalidInputError, NotFoundError
from registry.maths.router.random import random
from registry.opt_out.receipt import read_receipt
from registry.report.build import build_report
from registry.ui.composer.choices import Choices
from tests.conftest import Zoo, files_of
from tests.models import logits, make_model, save_checkpoint, train_tokenizer
from tests.registry.composition.test_base_members import IDS

COUNT = 3
UPCYCLED = Recipe(trunk="base", router="random")
TINY = MixtureTraining("all", 4 * 2 * 32, batch_size=2, seq_len=32, lr=0.01, device="cpu", dtype="float32")


@pytest.fixture
def moe(filled: Registry, tmp_path: Path) -> Path:
    filled.compose([], tmp_path / "moe", from_base=COUNT)
    return tmp_path / "moe"


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("family", ["llama", "qwen3", "granite"])
def test_tensors_are_those_of_the_model_under_several_names(
    registry: Registry, zoo: Zoo, tmp_path: Path, family: str
) -> None:
    base = save_checkpoint(make_model(family, 100), tmp_path / "base", train_tokenizer())
    registry.add_base("base", base)
    names = [f"up-{name}" for name in ("code", "law", "math")]
    for name in names:
        registry.add_expert(name, base, data=[zoo.train[name.removeprefix("up-")]])
    registry.compose(names, tmp_path / "named", UPCYCLED)
    plan = registry.compose((), tmp_path / "copied", from_base=COUNT)
    named, copied = (load_file(tmp_path / name / "model.safetensors") for name in ("named", "copied"))
    assert named.keys() == copied.keys()
    different = {name for name in named if not torch.equal(named[name], copied[name])}
    gates = ("gate.weight", "router.layer.weight")  # drawn for the texts of the named
    assert different == {name for name in named if name.endswith(gates)}
    assert (tmp_path / "named" / "config.json").read_bytes() == (tmp_path / "copied" / "config.json").read_bytes()
    digest = registry.resolve("base").digest
    for layer in range(2):
        rows = random([f"{digest} copy {number}" for number in (1, 2, 3)], 32, layer, normalize=False) / 0.05
        (gate,) = (copied[name] for name in different if f"layers.{layer}." in name)
        assert torch.equal(gate, rows.float())
        assert len(gate.unique(dim=0)) == COUNT
    assert plan.names == ["base-1", "base-2", "base-3"]


def test_it_gives_what_the_base_model_gives(moe: Path, zoo: Zoo) -> None:
    torch.testing.assert_close(logits(moe, IDS), logits(zoo.base, IDS), rtol=1e-4, atol=1e-4)


def test_more_copies_leave_the_rows_of_the_others(filled: Registry, tmp_path: Path) -> None:
    plan = filled.compose([], tmp_path / "twelve", from_base=12)
    assert plan.names == [f"base-{number:02d}" for number in range(1, 13)]
    filled.compose([], tmp_path / "three", from_base=COUNT)
    name = "model.layers.1.block_sparse_moe.gate.weight"
    twelve, three = (load_file(tmp_path / folder / "model.safetensors")[name] for folder in ("twelve", "three"))
    assert torch.equal(twelve[:COUNT], three)


def test_nothing_is_stored_twice(filled: Registry, tmp_path: Path) -> None:
    arrays = files_of(filled.home.path / "arrays")
    filled.compose([], tmp_path / "moe", from_base=8)
    assert files_of(filled.home.path / "arrays") == arrays
    assert filled.gc().digests == ()


def test_identity(filled: Registry, moe: Path, tmp_path: Path) -> None:
    document = json.loads((moe / "composition.json").read_text())
    assert document["from_base"] == COUNT
    digest = filled.resolve("base").digest
    assert document["members"] == [{"name": f"base-{number}", "digest": digest} for number in (1, 2, 3)]
    assert document["base"] == {"name": "base", "digest": digest}
    assert filled.plan([], from_base=COUNT).digest == document["digest"]
    assert filled.plan([], UPCYCLED, base="base@1", from_base=COUNT).digest == document["digest"]
    others = [filled.plan([], from_base=2), filled.plan([], Recipe(router="random", trunk="base", seed=1), from_base=3)]
    assert len({document["digest"], *(other.digest for other in others)}) == 3
    record = filled.composition(document["digest"][:12])
    assert record is not None
    assert record.members == ("base@1",)
    assert [event.details["members"] for event in filled.log(document["digest"])] == [["base@1"]]
    card = (moe / "README.md").read_text()
    assert "# 3 × base" in card
    assert "| 2 | base-3 |" in card
    assert "komatsuzaki2022upcycling" in card
    assert [line for line in card.splitlines() if line.startswith("$ reg add-")] == [
        f"$ reg add-base base CKPT    # {digest[:12]}…"
    ]
    assert Choices.of_document(record.document) is None
    filled.compose([], tmp_path / "again", from_base=COUNT)
    assert files_of(tmp_path / "again") == files_of(moe)


def test_it_is_reproduced_elsewhere(filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path) -> None:
    with Registry(tmp_path / "other") as other:
        with pytest.raises(NotFoundError, match="composed of base"):
            other.reproduce(moe)
        other.add_base("base", zoo.base)
        assert other.reproduce(moe, tmp_path / "kept").is_same
        assert [version.ref for version in other.reproduce(moe).versions] == ["base@1"]
    assert files_of(tmp_path / "kept") == files_of(moe)


def test_an_expert_of_a_copys_name_stays_apart(filled: Registry, moe: Path, zoo: Zoo) -> None:
    filled.add_expert("base-1", zoo.experts["law"])
    assert filled.reproduce(moe).is_same
    assert filled.compositions("base-1") == []
    filled.opt_out("base-1")
    assert filled.reproduce(moe).is_same


@pytest.mark.check
def test_training_tells_copies_apart(filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path) -> None:
    texts = [str(zoo.train[name]) for name in ("code", "law")]
    done = filled.train(moe, tmp_path / "out", texts, TINY)
    assert done.document["from_base"] == COUNT
    old, new = (load_file(folder / "model.safetensors") for folder in (moe, tmp_path / "out"))
    first, second = (f"model.layers.0.block_sparse_moe.experts.{number}.w1.weight" for number in (0, 1))
    assert torch.equal(old[first], old[second])
    assert not torch.equal(new[first], new[second])
    assert filled.reproduce(tmp_path / "out").is_same
    assert filled.verify().problems == ()
    assert filled.gc().digests == ()
    assert filled.reproduce(tmp_path / "out").is_same
    with pytest.raises(CalibrationError, match="base-1 is not a file, and base@1 is a base model") as refused:
        filled.train(moe, tmp_path / "none", ["base-1"], TINY)
    assert refused.value.hint == "name a file: --data FILE"


def test_evaluation_and_report(filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path) -> None:
    data = {"law": [zoo.test["law"]], "poems": [zoo.test["german"]]}
    base, _, row = filled.evaluate([moe], data, baselines=True)
    assert base.name == "base base@1"
    assert [*row.overall_load] == ["base-1", "base-2", "base-3"]
    assert row.perplexity["law"] == pytest.approx(base.perplexity["law"], rel=1e-4)
    assert [*row.score] == ["law"]
    record = filled.composition(filled.plan([], from_base=COUNT).digest)
    assert record is not None
    (stored,) = filled.evaluations(record)
    assert stored.document["figures"]["perplexity"].keys() == data.keys()
    report = build_report(filled._workspace, moe)
    assert [member.name for member in report.members] == ["base-1", "base-2", "base-3"]
    assert {member.ref for member in report.members} == {"base@1"}
    assert [(node.kind, len(node.of)) for node in report.lineage] == [("base", 0), ("composition", 1)]
    assert report.parameters == filled.plan([], from_base=COUNT).parameters


@pytest.mark.check
def test_opting_the_base_model_out(filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path) -> None:
    filled.train(moe, tmp_path / "trained", [str(zoo.train["law"])], TINY)
    filled.opt_out("law")
    assert filled.reproduce(moe).is_same
    filled.opt_out("base", purge=True, receipt=tmp_path / "receipt.json")
    receipt = read_receipt(tmp_path / "receipt.json")
    assert {(one.recomposed, one.why) for one in receipt.compositions} == {(None, "no member remains")}
    assert {*receipt.folders} == {str(moe), str(tmp_path / "trained")}
    assert filled.verify_receipt(tmp_path / "receipt.json").problems == []
    text = [str(zoo.train["law"])]
    for call in (lambda: filled.reproduce(moe), lambda: filled.train(moe, tmp_path / "x", text, TINY)):
        with pytest.raises(ConflictError, match="base@1, which was opted out"):
            call()


def test_a_recipe_file_holds_the_number(filled: Registry, moe: Path, tmp_path: Path) -> None:
    plan = filled.plan([], from_base=COUNT)
    write_recipe(tmp_path / "r.yaml", plan.recipe, base="base@1", from_base=COUNT)
    (tmp_path / "short.yaml").write_text("from_base: 3\n")
    read = [read_recipe(path) for path in (tmp_path / "r.yaml", tmp_path / "short.yaml", moe / "composition.json")]
    for one in (one.resolved(filled.catalog) for one in read):
        assert (one.experts, one.from_base) == ((), COUNT)
        assert filled.plan(one.experts, one.recipe, base=one.base, from_base=one.from_base).digest == plan.digest


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("from_base: 1\n", 1, "the number of copies of the base model is 1, it must be from 2 to 1,024"),
        ("from_base: true\n", 1, "the number of copies of the base model is True"),
        ("from_base: 2.5\n", 1, "the number of copies of the base model is 2.5"),
        ("from_base: [2]\n", 1, "the number of copies of the base model is"),
        ("from_base: 4\nrouter: ridge\n", 2, "router method 'ridge' cannot tell copies of one base model apart"),
        ("from_base: 4\ntrunk: mean\n", 2, "trunk method 'mean' has nothing to combine"),
        ("from_base: 4\nto: ensemble\n", 2, "--to ensemble makes none"),
        ("from_base: 4\nexperts: [code]\n", 2, "and others are named"),
        ("from_base: 4\ntop_k: 5\n", 2, "top-k is 5, it must be from 1 to 4"),
        ("from_base: 4\nweights: {base-1: 2}\n", 2, "weights change nothing"),
        ("from_base: 4\nrefine_mlp: true\n", 2, "there is nothing to refine"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(InvalidInputError) as refused:
        read_recipe(tmp_path / "r.yaml")
    assert refused.value.message.startswith(f"{tmp_path / 'r.yaml'}:{line}: ")
    assert message in refused.value.message
    assert refused.value.hint


@pytest.mark.check(after=8)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"from_base": 1}, "copies of the base model is 1"),
        ({"from_base": 1025}, "copies of the base model is 1025"),
        ({"from_base": True}, "copies of the base model is True"),
        ({"from_base": 4, "base": "law"}, "law is an expert, not a base model"),
        ({"from_base": 4, "recipe": Recipe()}, "router method 'context' cannot tell copies"),
        ({"from_base": 4, "recipe": Recipe(router="anchored", trunk="base")}, "router method 'anchored' cannot tell"),
        ({"from_base": 4, "recipe": Recipe(router="random", trunk="mean")}, "trunk method 'mean' has nothing"),
        ({"from_base": 4, "recipe": EnsembleRecipe()}, "--to ensemble makes none"),
        ({"from_base": 4, "recipe": Recipe(to="dense", trunk="mean")}, "--to dense makes none"),
        ({"from_base": 2, "recipe": Recipe(router="random", trunk="base", top_k=3)}, "top-k is 3"),
        ({"from_base": 4, "recipe": Recipe(router="random", trunk="base", weights={"base-1": 2.0})}, "weights change"),
        ({"from_base": 4, "experts": ["law"]}, "and others were named"),
    ],
)
def test_what_cannot_be_is_refused_first(filled: Registry, tmp_path: Path, given: dict[str, Any], message: str) -> None:
    before = files_of(filled.home.path)
    with pytest.raises(InvalidInputError, match=message) as refused:
        filled.compose(out=tmp_path / "out", **({"experts": []} | given))
    assert refused.value.hint
    assert not (tmp_path / "out").exists()
    assert files_of(filled.home.path) == before


def test_a_name_without_room_for_the_number_is_refused(registry: Registry, zoo: Zoo) -> None:
    registry.add_base("b" * 99, zoo.base)
    with pytest.raises(InvalidInputError, match="names of more than 100 characters"):
        registry.plan([], from_base=2)


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(from_base=2),
        lambda document: document.update(from_base=COUNT + 1),
        lambda document: document.update(base=None),
        lambda document: document["base"].update(name="other"),
        lambda document: document["members"][0].update(digest="0" * 64),
        lambda document: document["members"][2].update(name="base-4"),
        lambda document: document["recipe"].update(trunk="mean"),
    ],
)
def test_a_forged_document_is_refused(moe: Path, change: Any) -> None:
    document = json.loads((moe / "composition.json").read_text())
    CompositionManifest.from_document(document, "it")
    change(document)
    with pytest.raises(CheckpointError):
        CompositionManifest.from_document(document, "it")
