"""Proves: a base model is a member where no statistics of it are needed, and is refused with the reason elsewhere.

And: a mixture of copies of it is that of the same model under several names, and lives like any other. Of what is
written, reproduced, trained, evaluated and opted out.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import MixtureTraining, Recipe, Registry
from registry.composition import read_recipe, write_recipe
from registry.composition.manifest import CompositionManifest
from registry.errors import (
    CalibrationError,
    CheckpointError,
    ConflictError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
)
from registry.maths.router.gates import random
from registry.opt_out.receipt import read_receipt
from registry.report.build import build_report
from registry.ui.composer.choices import Choices
from tests.conftest import Zoo, files_of
from tests.models import logits, make_model, save_checkpoint, train_tokenizer
from tests.registry.composition.composed import FEW, GATE, json_of, tensors_of

IDS = torch.arange(1, 25).reshape(2, 12)
COUNT = 3
UPCYCLED = Recipe(trunk="base", router="random")
TINY = MixtureTraining("all", tokens=4 * 2 * 32, batch_size=2, seq_len=32, lr=0.01, device="cpu", dtype="float32")


@pytest.mark.check(after=2)
@pytest.mark.trust(after=4)
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(trunk="mean", router="random"),
        Recipe(trunk="mean", router="random", balance="tokens", weights={"base": 2.0}),
        Recipe(to="dense", trunk="mean"),
        Recipe(to="dense", trunk="ties"),
        Recipe(to="dense", trunk="task-arithmetic"),
        Recipe(to="ensemble"),
        Recipe(to="ensemble", routing="task-vector", top_k=1),
    ],
    ids=["mean", "weighted", "soup", "ties", "task-arithmetic", "posterior", "task-vector"],
)
def test_it_is_a_member_and_reproduced(filled: Registry, tmp_path: Path, recipe: Any) -> None:
    plan = filled.compose(["law", "base"], tmp_path / "one", recipe)
    assert plan.names == ["base", "law"]
    assert filled.compose(["base@1", "law"], tmp_path / "two", recipe).digest == plan.digest
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert filled.reproduce(tmp_path / "one").is_same
    assert filled.composition(plan.digest[:12]).members == ("base@1", "law@1")  # type: ignore[union-attr]
    card = (tmp_path / "one" / "README.md").read_text()
    assert card.count("$ reg add-base base CKPT") == card.count("$ reg add-expert law CKPT") == 1
    assert "$ reg add-expert base CKPT" not in card
    read = read_recipe(tmp_path / "one" / "composition.json").resolved(filled.catalog)
    assert read.experts == ("base@1", "law@1")
    assert filled.plan(read.experts, read.recipe, base=read.base).digest == plan.digest


def test_its_weights_are_what_was_registered(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    own, law = tensors_of(zoo.base), tensors_of(zoo.experts["law"])
    filled.compose(["base", "law"], tmp_path / "moe", Recipe(trunk="mean", router="random"))
    filled.compose(["base", "law"], tmp_path / "soup", Recipe(to="dense", trunk="mean"))
    filled.compose(["base"], tmp_path / "alone", Recipe(trunk="mean", router="random"))
    mixed, soup = tensors_of(tmp_path / "moe"), tensors_of(tmp_path / "soup")
    for layer in range(2):
        for number, one in enumerate((own, law)):
            for name, part in (("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")):
                written = mixed[f"model.layers.{layer}.block_sparse_moe.experts.{number}.{name}.weight"]
                assert torch.equal(written, one[f"model.layers.{layer}.mlp.{part}.weight"])
    assert own.keys() == soup.keys()
    assert all(torch.equal(soup[name], ((own[name].double() + law[name].double()) / 2).float()) for name in own)
    assert torch.equal(logits(tmp_path / "alone", IDS), logits(zoo.base, IDS))


def test_opting_it_out_recomposes_the_others(filled: Registry, tmp_path: Path) -> None:
    recipe = Recipe(trunk="mean", router="random", top_k=2)
    filled.compose(["base", "law", "code"], tmp_path / "moe", recipe)
    rest = filled.plan(["law", "code"], recipe)
    filled.opt_out("base", receipt=tmp_path / "receipt.json")
    receipt = read_receipt(tmp_path / "receipt.json")
    (affected,) = receipt.compositions
    assert affected.recomposed is not None
    assert affected.recomposed.digest == rest.digest
    assert filled.verify_receipt(tmp_path / "receipt.json").problems == []


def test_it_is_refused_where_statistics_are_needed(filled: Registry) -> None:
    for recipe, message, hint in (
        (Recipe(), "has no token counts, and router method 'context'", "or choose --router random --trunk mean"),
        (Recipe(router="ridge", trunk="mean"), "has no statistics of mlp_input", "or choose --router random"),
        (Recipe(router="random"), "and trunk method 'regmean' needs them", "or choose --trunk mean"),
        (Recipe(router="ridge", trunk="mean", refine=1), "has no calibration tokens", "--keep-calibration; or choose"),
        (Recipe(router="domain-embedding", trunk="base"), "has no calibration tokens", "--keep-calibration; or choose"),
    ):
        with pytest.raises(IncompatibleError, match=f"^base@1 is a base model, which .*{message}") as refused:
            filled.plan(["law", "base"], recipe)
        assert "register its checkpoint as an expert too, with text: reg add-expert NAME" in str(refused.value.hint)
        assert hint in str(refused.value.hint)


def test_figures_from_statistics_are_refused(filled: Registry, zoo: Zoo) -> None:
    with pytest.raises(IncompatibleError, match=r"base@1 is a base model, .* a preview needs them"):
        filled.preview(["base", "law"], Recipe(trunk="mean", router="random"))
    with pytest.raises(IncompatibleError, match=r"base@1 is a base model, .* comparison with documents needs them"):
        filled.likeness(["base", "law"], [zoo.train["law"]])


# -- copies ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def moe(filled: Registry, tmp_path: Path) -> Path:
    filled.compose([], tmp_path / "moe", from_base=COUNT)
    return tmp_path / "moe"


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("family", ["llama", "qwen3", "granite"])
def test_copies_are_the_model_under_several_names(registry: Registry, zoo: Zoo, tmp_path: Path, family: str) -> None:
    base = save_checkpoint(make_model(family, 100), tmp_path / "base", train_tokenizer())
    registry.add_base("base", base)
    names = [f"up-{name}" for name in ("code", "law", "math")]
    for name in names:
        registry.add_expert(name, base, data=[zoo.train[name.removeprefix("up-")]], settings=FEW)
    registry.compose(names, tmp_path / "named", UPCYCLED)
    plan = registry.compose((), tmp_path / "copied", from_base=COUNT)
    named, copied = tensors_of(tmp_path / "named"), tensors_of(tmp_path / "copied")
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


def test_more_copies_leave_the_rows_of_the_others(filled: Registry, moe: Path, tmp_path: Path) -> None:
    arrays, name = files_of(filled.home.path / "arrays"), GATE.format(1)
    plan = filled.compose([], tmp_path / "twelve", from_base=12)
    assert plan.names == [f"base-{number:02d}" for number in range(1, 13)]
    assert torch.equal(tensors_of(tmp_path / "twelve")[name][:COUNT], tensors_of(moe)[name])
    assert files_of(filled.home.path / "arrays") == arrays
    assert filled.gc().digests == ()


def test_it_gives_what_the_base_model_gives_and_says_what_it_is(filled: Registry, moe: Path, zoo: Zoo) -> None:
    torch.testing.assert_close(logits(moe, IDS), logits(zoo.base, IDS), rtol=1e-4, atol=1e-4)
    document = json_of(moe)
    assert document["from_base"] == COUNT
    digest = filled.resolve("base").digest
    assert document["members"] == [{"name": f"base-{number}", "digest": digest} for number in (1, 2, 3)]
    assert document["base"] == {"name": "base", "digest": digest}
    assert filled.plan([], from_base=COUNT).digest == document["digest"]
    assert filled.plan([], UPCYCLED, base="base@1", from_base=COUNT).digest == document["digest"]
    others = [filled.plan([], from_base=2), filled.plan([], UPCYCLED.replace(seed=1), from_base=COUNT)]
    assert len({document["digest"], *(other.digest for other in others)}) == 3
    record = filled.composition(document["digest"][:12])
    assert record is not None
    assert record.members == ("base@1",)
    assert [event.details["members"] for event in filled.log(document["digest"])] == [["base@1"]]
    card = (moe / "README.md").read_text()
    assert "# 3 × base" in card
    added = [line for line in card.splitlines() if line.startswith("$ reg add-")]
    assert added == [f"$ reg add-base base CKPT    # {digest[:12]}…"]
    assert Choices.of_document(record.document) is None


def test_copies_are_reproduced_elsewhere(filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path) -> None:
    with Registry(tmp_path / "other") as other:
        with pytest.raises(NotFoundError, match="composed of base"):
            other.reproduce(moe)
        other.add_base("base", zoo.base)
        assert other.reproduce(moe, tmp_path / "kept").is_same
        assert [version.ref for version in other.reproduce(moe).versions] == ["base@1"]
    assert files_of(tmp_path / "kept") == files_of(moe)
    filled.add_expert("base-1", zoo.experts["law"])
    assert filled.compositions("base-1") == []
    filled.opt_out("base-1")
    assert filled.reproduce(moe).is_same


@pytest.mark.check
def test_training_tells_copies_apart(filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path) -> None:
    texts = [str(zoo.train[name]) for name in ("code", "law")]
    done = filled.train(moe, tmp_path / "out", texts, TINY)
    assert done.document["from_base"] == COUNT
    old, new = tensors_of(moe), tensors_of(tmp_path / "out")
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
    assert [(member.name, member.ref) for member in report.members] == [(f"base-{n}", "base@1") for n in (1, 2, 3)]
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


def test_what_cannot_be_is_refused_first(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    filled.add_base("b" * 99, zoo.base)
    before = files_of(filled.home.path)
    refusals: list[tuple[int, dict[str, Any], str]] = [
        (1, {}, "copies of the base model is 1"),
        (True, {}, "copies of the base model is True"),
        (4, {"base": "law"}, "law is an expert, not a base model"),
        (4, {"recipe": Recipe()}, "router method 'context' cannot tell copies"),
        (4, {"recipe": Recipe(router="random", trunk="mean")}, "trunk method 'mean' has nothing"),
        (4, {"recipe": Recipe(to="ensemble")}, "--to ensemble makes none"),
        (2, {"recipe": UPCYCLED.replace(top_k=3)}, "top-k is 3"),
        (4, {"recipe": UPCYCLED.replace(weights={"base-1": 2.0})}, "weights change nothing"),
        (4, {"recipe": UPCYCLED.replace(refine=1)}, "there is nothing to refine"),
        (4, {"experts": ["law"]}, "and others were named"),
        (2, {"base": "b" * 99}, "names of more than 100 characters"),
    ]
    for count, given, message in refusals:
        with pytest.raises(InvalidInputError, match=message) as refused:
            filled.compose(out=tmp_path / "out", **{"experts": []} | given, from_base=count)
        assert refused.value.hint
    assert not (tmp_path / "out").exists()
    assert files_of(filled.home.path) == before


def test_a_forged_document_is_refused(moe: Path) -> None:
    changes: list[Callable[[Any], Any]] = [
        lambda document: document.update(from_base=2),
        lambda document: document.update(from_base=COUNT + 1),
        lambda document: document.update(base=None),
        lambda document: document["base"].update(name="other"),
        lambda document: document["members"][0].update(digest="0" * 64),
        lambda document: document["members"][2].update(name="base-4"),
        lambda document: document["recipe"].update(trunk="mean"),
    ]
    CompositionManifest.from_document(json_of(moe), "it")
    for change in changes:
        change(document := json_of(moe))
        with pytest.raises(CheckpointError):
            CompositionManifest.from_document(document, "it")
