"""Proves: coefficients multiply task vectors as they are, in dense models and in trunks, and leave with a member."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from registry import EnsembleRecipe, Recipe, Registry
from registry.composition.recipe import read_recipe, recipe_schema, write_recipe
from registry.composition.recipe.coefficient_fit import CoefficientFit, fitted_members
from registry.errors import CheckpointError, InvalidInputError
from registry.io.model_folder import MARKER
from registry.io.strict_yaml import parse_yaml
from tests.conftest import Zoo, files_of

PAIR = ("code", "math")


def dense(**coefficients: float) -> Recipe:
    return Recipe(to="dense", trunk="task-arithmetic", coefficients=coefficients)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def fit_of(registry: Registry, *names: str) -> CoefficientFit:
    """Return the record of a fit for registered experts, of which only the members are true."""
    members = [(name, registry.resolve(name).digest) for name in names]
    digest = fitted_members(members, registry.resolve("base").digest)
    return CoefficientFit(digest, "d" * 64, 4096, 30, 8, 32, 0.05, 0, "cpu", 3.5, 3.25)


def test_dense_model_equals_a_reference(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """Soup-of-Experts, eq. 2–3, in plain loops over the checkpoints' tensors."""
    coefficients = {"code": 0.7, "math": -0.2, "law": 0.0}
    filled.compose([*coefficients], tmp_path / "out", dense(**coefficients))
    found, base = tensors_of(tmp_path / "out"), tensors_of(zoo.base)
    assert found.keys() == base.keys()
    for name, start in base.items():
        expected = start.double()
        for member in sorted(coefficients):
            task = tensors_of(zoo.experts[member])[name].double() - start.double()
            expected = expected + coefficients[member] * task
        torch.testing.assert_close(found[name].double(), expected, rtol=1e-6, atol=1e-7)


def test_one_of_one_member_and_none_of_the_others_is_that_member(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    for member in PAIR:
        others = {name: float(name == member) for name in (*PAIR, "law")}
        filled.compose([*others], tmp_path / member, dense(**others))
        found, own = tensors_of(tmp_path / member), tensors_of(zoo.experts[member])
        assert all(torch.equal(found[name], own[name]) for name in own)
    filled.compose(PAIR, tmp_path / "none", dense(code=0, math=0))
    found, base = tensors_of(tmp_path / "none"), tensors_of(zoo.base)
    assert all(torch.equal(found[name], base[name]) for name in base)


def test_equal_coefficients_are_a_scale(filled: Registry, tmp_path: Path) -> None:
    filled.compose(PAIR, tmp_path / "out", dense(code=0.5, math=0.5))
    scaled = Recipe(to="dense", trunk="task-arithmetic", trunk_options={"scale": 0.5})
    filled.compose(PAIR, tmp_path / "scaled", scaled)
    found, expected = tensors_of(tmp_path / "out"), tensors_of(tmp_path / "scaled")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("to", ["dense", "moe"])
def test_order_and_history_leave_no_trace(filled: Registry, zoo: Zoo, tmp_path: Path, to: str) -> None:
    recipe = Recipe(to=to, trunk="task-arithmetic", coefficients={"code": 1.3, "law": -0.4, "math": 0.1})
    again = Recipe(to=to, trunk="task-arithmetic", coefficients={"math": 0.1, "law": -0.4, "code": 1.3})
    filled.compose(["code", "math", "law"], tmp_path / "out", recipe)
    with Registry(tmp_path / "other") as other:
        for name in ("math", "law", "code"):
            other.add_expert(name, zoo.experts[name])
        other.add_base("base", zoo.base)
        other.compose(["law", "code", "math"], tmp_path / "again", again)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "again")
    assert filled.reproduce(tmp_path / "out").is_same


def test_mixture_has_the_trunk_and_the_members_own_mlps(filled: Registry, tmp_path: Path) -> None:
    recipe = Recipe(trunk="task-arithmetic", router="random", coefficients={"code": 0.7, "math": -0.2})
    filled.compose(PAIR, tmp_path / "moe", recipe)
    filled.compose(PAIR, tmp_path / "dense", dense(code=0.7, math=-0.2))
    filled.compose(PAIR, tmp_path / "plain", Recipe(trunk="mean", router="random"))
    moe, plain, whole = (tensors_of(tmp_path / name) for name in ("moe", "plain", "dense"))
    for name, tensor in moe.items():
        assert torch.equal(tensor, plain[name] if "block_sparse_moe" in name else whole[name]), name


@pytest.mark.check(after=1)
@pytest.mark.parametrize("to", ["dense", "moe"])
def test_other_coefficients_rewrite_what_they_change(filled: Registry, tmp_path: Path, to: str) -> None:
    for step, number in enumerate((0.7, 0.3)):
        recipe = Recipe(to=to, trunk="task-arithmetic", router="ridge", coefficients={"code": number, "math": 0.5})
        filled.compose(PAIR, tmp_path / "out", recipe, force=bool(step))
    filled.compose(PAIR, tmp_path / "fresh", recipe)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "fresh")


def test_document_has_them_only_where_they_are_given(filled: Registry) -> None:
    plain = filled.plan(PAIR, Recipe(trunk="task-arithmetic")).document["recipe"]
    assert not {"coefficients", "fit"} & plain.keys()
    given = filled.plan(PAIR, dense(math=-1, code=2)).document["recipe"]
    assert (given["coefficients"], given["trunk_options"]) == ({"code": 2.0, "math": -1.0}, {})
    assert Recipe.from_document(given, PAIR).document(PAIR) == given


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"coefficients": {"code": 1.0}}, "coefficients has no part in trunk method 'regmean'"),
        ({"trunk": "ties", "coefficients": {"code": 1.0}}, "coefficients has no part in trunk method 'ties'"),
        (
            {"trunk": "task-arithmetic", "coefficients": {"code": 1.0}, "trunk_options": {"scale": 0.3}},
            "scale multiplies all task vectors, and coefficients multiply each",
        ),
        (
            {"trunk": "task-arithmetic", "coefficients": {"code": 1.0}, "weights": {"code": 2.0}},
            "weights multiply task vectors at a mean of 1",
        ),
        (
            {"trunk": "task-arithmetic", "coefficients": {"code": float("nan")}},
            "the coefficient of code is nan, it must be a finite number",
        ),
        ({"trunk": "task-arithmetic", "coefficients": {"code": 1e9}}, "from -10000 to 10000"),
        ({"trunk": "task-arithmetic", "coefficients": [1.0]}, r"coefficients is \[1.0\], it must be numbers by member"),
    ],
)
def test_what_cannot_stand_beside_them_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        Recipe(**settings)
    assert caught.value.hint


def test_every_member_has_one(filled: Registry) -> None:
    with pytest.raises(InvalidInputError, match="no coefficient for law, math, and every member needs one") as caught:
        filled.plan(["code", "law", "math"], dense(code=1))
    assert caught.value.hint == "give one, 0 to leave the task vector out: --coefficients code=1,law=0,math=0"
    with pytest.raises(InvalidInputError, match="there is a coefficient for biomed, which is not a member"):
        filled.plan(PAIR, dense(code=1, math=1, biomed=1))
    with pytest.raises(InvalidInputError, match="coefficients has no part in an ensemble whose members keep their own"):
        EnsembleRecipe(coefficients={"code": 1.0})


def test_given_by_hand_they_leave_with_their_member(filled: Registry, tmp_path: Path) -> None:
    filled.compose([*PAIR, "law"], tmp_path / "out", dense(code=0.7, law=-0.2, math=0.5))
    filled.opt_out("law", receipt=tmp_path / "receipt.json")
    (one,) = json.loads((tmp_path / "receipt.json").read_text())["compositions"]
    assert one["recomposed"]["digest"] == filled.plan(PAIR, dense(code=0.7, math=0.5)).digest
    assert filled.verify_receipt(tmp_path / "receipt.json").problems == []


def test_fitted_ones_are_for_their_members_alone(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    numbers = {"code": 0.7, "law": -0.2, "math": 0.5}
    recipe = Recipe(to="dense", trunk="task-arithmetic", coefficients=numbers, fit=fit_of(filled, *numbers))
    filled.compose([*numbers], tmp_path / "out", recipe)
    assert filled.reproduce(tmp_path / "out").is_same
    with pytest.raises(InvalidInputError, match="the coefficients were fitted for other members") as caught:
        filled.plan(PAIR, replace(recipe, coefficients={"code": 0.7, "math": 0.5}))
    assert "--experts code@1,math@1 --to dense --trunk task-arithmetic --fit FILE" in str(caught.value.hint)
    with pytest.raises(InvalidInputError, match="the record of a fit, and no coefficients"):
        Recipe(to="dense", trunk="task-arithmetic", fit=recipe.fit)
    with pytest.raises(InvalidInputError, match="fitted for all members together, and a schedule"):
        filled.continual([*numbers], {name: [zoo.test[name]] for name in numbers}, recipe=recipe)
    filled.opt_out("law", receipt=tmp_path / "receipt.json")
    (one,) = json.loads((tmp_path / "receipt.json").read_text())["compositions"]
    assert one["recomposed"] is None
    assert one["why"].startswith("its coefficients were fitted for all members together")
    assert filled.verify_receipt(tmp_path / "receipt.json").problems == []


def test_files_hold_the_record_of_a_fit(filled: Registry, tmp_path: Path) -> None:
    recipe = Recipe(
        to="dense", trunk="task-arithmetic", coefficients={"code": 0.7, "math": -1e-7}, fit=fit_of(filled, *PAIR)
    )
    write_recipe(tmp_path / "r.yaml", recipe, PAIR, "base")
    assert read_recipe(tmp_path / "r.yaml").recipe == recipe
    parse = parse_yaml((tmp_path / "r.yaml").read_bytes(), "r").plain
    assert {*recipe_schema()["properties"]} >= {*parse}  # type: ignore[misc]
    filled.compose(PAIR, tmp_path / "out", recipe)
    assert read_recipe(tmp_path / "out" / MARKER).recipe == recipe
    text = (tmp_path / "r.yaml").read_text()
    for changed, message in (
        (text.replace("seq_len: 32, ", ""), "fit has no key 'seq_len'"),
        (text.replace("tokens: 4096", "tokens: many"), "fit: tokens is 'many', it must be a whole number"),
        (text.replace("coefficients: {code: 0.7, math: -1.0e-07}\n", ""), "the record of a fit, and no coefficients"),
        (text.replace(", math: -1.0e-07", ""), "there is no coefficient for math"),
    ):
        assert changed != text
        (tmp_path / "changed.yaml").write_text(changed)
        with pytest.raises(InvalidInputError, match=message):
            read_recipe(tmp_path / "changed.yaml")
    document = filled.plan(PAIR, recipe).document["recipe"]
    with pytest.raises(CheckpointError, match="is not the record of a fit"):
        Recipe.from_document(document | {"fit": document["fit"] | {"device": "no name"}}, PAIR)
