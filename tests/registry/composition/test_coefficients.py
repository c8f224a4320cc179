"""Proves: coefficients multiply task vectors as they are, in dense models and in trunks, and leave with a member."""

from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Recipe, Registry
from registry.composition import read_recipe, write_recipe
from registry.composition.recipe.recipe import CoefficientFit, fitted_members
from registry.errors import CheckpointError, InvalidInputError
from registry.io.model_folder import MARKER
from tests.conftest import Zoo, files_of
from tests.registry.composition.composed import PAIR, files_elsewhere, json_of, tensors_of


def dense(**coefficients: float) -> Recipe:
    return Recipe(to="dense", trunk="task-arithmetic", coefficients=coefficients)


def fit_of(registry: Registry, *names: str) -> CoefficientFit:
    """Return the record of a fit for registered experts, of which only the members are true."""
    members = [(name, registry.resolve(name).digest) for name in names]
    digest = fitted_members(members, registry.resolve("base").digest)
    return CoefficientFit(digest, "d" * 64, 4096, 30, 8, 32, 0.05, 0, "cpu", 3.5, 3.25)


def test_dense_model_equals_a_reference(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """Soup-of-Experts, eq. 2, in plain loops over the checkpoints' tensors."""
    coefficients = {"code": 0.7, "math": -0.2, "law": 0.0}
    filled.compose([*coefficients], tmp_path / "out", dense(**coefficients))
    found, base = tensors_of(tmp_path / "out"), tensors_of(zoo.base)
    own = {member: tensors_of(zoo.experts[member]) for member in coefficients}
    assert found.keys() == base.keys()
    for name, start in base.items():
        expected = start.double()
        for member in sorted(coefficients):
            expected = expected + coefficients[member] * (own[member][name].double() - start.double())
        torch.testing.assert_close(found[name].double(), expected, rtol=1e-6, atol=1e-7)


def test_one_of_one_member_and_none_of_the_others_is_that_member(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    for alone, checkpoint in (*((name, zoo.experts[name]) for name in PAIR), ("base", zoo.base)):
        coefficients = {name: float(name == alone) for name in (*PAIR, "law")}
        filled.compose([*coefficients], tmp_path / alone, dense(**coefficients))
        found, own = tensors_of(tmp_path / alone), tensors_of(checkpoint)
        assert all(torch.equal(found[name], own[name]) for name in own)


def test_a_domain_leaves_a_soup_of_frozen_shared_weights_to_the_byte(filled: Registry, tmp_path: Path) -> None:
    """Soup-of-Experts, eq. 2, with S = θ_0 that never trained, E_d of domain d alone and α = h; the opt-out is ours."""
    filled.compose([*PAIR, "law"], tmp_path / "zero", dense(code=0.7, math=0.3, law=0.0))
    filled.compose(PAIR, tmp_path / "without", dense(code=0.7, math=0.3))
    filled.opt_out("law", purge=True)
    filled.compose(PAIR, tmp_path / "after", dense(code=0.7, math=0.3))
    assert files_of(tmp_path / "after") == files_of(tmp_path / "without")
    zero, without = (files_of(tmp_path / name) for name in ("zero", "without"))
    assert {name for name in without if zero[name] != without[name]} == {"README.md", MARKER}  # which name the members


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("to", ["dense", "moe"])
def test_order_and_history_leave_no_trace(filled: Registry, zoo: Zoo, tmp_path: Path, to: str) -> None:
    """Nor do other coefficients that were in the folder before."""
    recipe = Recipe(to=to, trunk="task-arithmetic", coefficients={"code": 1.3, "law": -0.4, "math": 0.1})
    again = Recipe(to=to, trunk="task-arithmetic", coefficients={"math": 0.1, "law": -0.4, "code": 1.3})
    for number in (0.7, 1.3):
        numbers = {**recipe.coefficients, "code": number}
        filled.compose([*numbers], tmp_path / "out", recipe.replace(coefficients=numbers), force=True)
    assert files_of(tmp_path / "out") == files_elsewhere(zoo, tmp_path, ("math", "law", "code"), again)
    assert filled.reproduce(tmp_path / "out").is_same


def test_mixture_has_the_trunk_and_the_members_own_mlps(filled: Registry, tmp_path: Path) -> None:
    recipe = Recipe(trunk="task-arithmetic", router="random", coefficients={"code": 0.7, "math": -0.2})
    filled.compose(PAIR, tmp_path / "moe", recipe)
    filled.compose(PAIR, tmp_path / "dense", dense(code=0.7, math=-0.2))
    filled.compose(PAIR, tmp_path / "plain", Recipe(trunk="mean", router="random"))
    moe, plain, whole = (tensors_of(tmp_path / name) for name in ("moe", "plain", "dense"))
    for name, tensor in moe.items():
        assert torch.equal(tensor, plain[name] if "block_sparse_moe" in name else whole[name]), name


def test_what_cannot_stand_beside_them_is_refused() -> None:
    task: dict[str, Any] = {"trunk": "task-arithmetic", "coefficients": {"code": 1.0}}
    for settings, message in (
        ({"coefficients": {"code": 1.0}}, "coefficients has no part in trunk method 'regmean'"),
        (task | {"trunk_options": {"scale": 0.3}}, "scale multiplies all task vectors, and coefficients multiply each"),
        (task | {"weights": {"code": 2.0}}, "weights multiply task vectors at a mean of 1"),
        (task | {"coefficients": {"code": 1e9}}, "from -10000 to 10000"),
    ):
        with pytest.raises(InvalidInputError, match=message) as caught:
            Recipe(**settings)
        assert caught.value.hint


def test_every_member_has_one_which_leaves_with_it(filled: Registry, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no coefficient for law, math, and every member needs one") as caught:
        filled.plan(["code", "law", "math"], dense(code=1))
    assert caught.value.hint == "give one, 0 to leave the task vector out: --coefficients code=1,law=0,math=0"
    with pytest.raises(InvalidInputError, match="there is a coefficient for biomed, which is not a member"):
        filled.plan(PAIR, dense(code=1, math=1, biomed=1))
    filled.compose([*PAIR, "law"], tmp_path / "out", dense(code=0.7, law=-0.2, math=0.5))
    filled.opt_out("law", receipt=tmp_path / "receipt.json")
    (one,) = json_of(tmp_path, "receipt.json")["compositions"]
    assert one["recomposed"]["digest"] == filled.plan(PAIR, dense(code=0.7, math=0.5)).digest
    assert filled.verify_receipt(tmp_path / "receipt.json").problems == []


def test_fitted_ones_are_for_their_members_alone(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    numbers = {"code": 0.7, "law": -0.2, "math": 0.5}
    recipe = Recipe(to="dense", trunk="task-arithmetic", coefficients=numbers, fit=fit_of(filled, *numbers))
    filled.compose([*numbers], tmp_path / "out", recipe)
    assert filled.reproduce(tmp_path / "out").is_same
    with pytest.raises(InvalidInputError, match="the coefficients were fitted for other members") as caught:
        filled.plan(PAIR, recipe.replace(coefficients={"code": 0.7, "math": 0.5}))
    assert "--experts code@1,math@1 --to dense --trunk task-arithmetic --fit FILE" in str(caught.value.hint)
    with pytest.raises(InvalidInputError, match="the record of a fit, and no coefficients"):
        Recipe(to="dense", trunk="task-arithmetic", fit=recipe.fit)
    with pytest.raises(InvalidInputError, match="fitted for all members together, and a schedule"):
        filled.continual([*numbers], {name: [zoo.test[name]] for name in numbers}, recipe=recipe)
    filled.opt_out("law", receipt=tmp_path / "receipt.json")
    (one,) = json_of(tmp_path, "receipt.json")["compositions"]
    assert one["recomposed"] is None
    assert one["why"].startswith("its coefficients were fitted for all members together")
    assert filled.verify_receipt(tmp_path / "receipt.json").problems == []


def test_files_hold_the_record_of_a_fit(filled: Registry, tmp_path: Path) -> None:
    recipe = Recipe(
        to="dense", trunk="task-arithmetic", coefficients={"code": 0.7, "math": -1e-7}, fit=fit_of(filled, *PAIR)
    )
    write_recipe(tmp_path / "r.yaml", recipe, PAIR, "base")
    assert read_recipe(tmp_path / "r.yaml").recipe == recipe
    filled.compose(PAIR, tmp_path / "out", recipe)
    assert read_recipe(tmp_path / "out" / MARKER).recipe == recipe
    text = (tmp_path / "r.yaml").read_text()
    for changed, message in (
        (text.replace("seq_len: 32, ", ""), "fit has no key 'seq_len'"),
        (text.replace("tokens: 4096", "tokens: many"), "fit: tokens is 'many', it must be a whole number"),
    ):
        assert changed != text
        (tmp_path / "changed.yaml").write_text(changed)
        with pytest.raises(InvalidInputError, match=message):
            read_recipe(tmp_path / "changed.yaml")
    document = filled.plan(PAIR, recipe).document["recipe"]
    with pytest.raises(CheckpointError, match="is not the record of a fit"):
        Recipe.from_document(document | {"fit": document["fit"] | {"device": "no name"}}, PAIR)
