"""Proves: a soup's model is task arithmetic with the coefficients of its domain weights, and what cannot be is refused.

And: domains get coefficients of their own, which serve their text better than those of all domains alike.
"""

import json
from dataclasses import replace
from importlib import import_module
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from registry import FitSettings, Recipe, Registry, TestSettings
from registry.errors import CalibrationError, ConflictError, IncompatibleError, InvalidInputError, OutputError, RegError
from registry.member import load_member
from registry.methods.moe.plan import make_plan
from registry.methods.soup.versions import SOUP_FILE, SOUP_ROUTER, unpack_router
from tests.conftest import Zoo, files_of
from tests.models import write_jsonl
from tests.registry.methods.soup.conftest import DOMAINS


@pytest.mark.check
def test_model_is_task_arithmetic_with_the_coefficients_of_its_weights(soup: Registry, tmp_path: Path) -> None:
    found = soup.instantiate("soup", tmp_path / "out", weights={"code": 3, "math": 1})
    assert found.domain_weights == {"code": 0.75, "german": 0.0, "math": 0.25}
    member = load_member(soup._workspace, soup.resolve("soup"))
    router = unpack_router(member.file(SOUP_ROUTER), member.content["soup"], 32, "soup")
    hidden = torch.from_numpy(router.hidden).double() @ torch.tensor([0.75, 0.0, 0.25]).double()
    middle = torch.relu(hidden + torch.from_numpy(router.hidden_bias))
    alpha = torch.from_numpy(router.output).double() @ middle + torch.from_numpy(router.output_bias)  # φ (§2.3)
    assert list(found.coefficients.values()) == pytest.approx(alpha.tolist(), rel=1e-12)
    for name in ("soup", "soup-1", "soup-2"):
        soup.export(name, tmp_path / name)
    shared, *experts = (load_file(tmp_path / name / "model.safetensors") for name in ("soup", "soup-1", "soup-2"))
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == shared.keys()
    for name, tensor in shared.items():
        expected = tensor.double()
        for j, expert in enumerate(experts):  # eq. 2
            expected = expected + list(found.coefficients.values())[j] * (expert[name].double() - tensor.double())
        assert torch.allclose(written[name].double(), expected, atol=1e-6), name
    assert not {SOUP_FILE, SOUP_ROUTER} & files_of(tmp_path / "out").keys()
    (made,) = soup.compositions()
    assert made.digest == found.plan.digest
    assert made.document["recipe"]["coefficients"] == found.coefficients
    assert set(made.members) == {"soup@1", "soup-1@1", "soup-2@1"}
    assert soup.reproduce(tmp_path / "out").is_same
    again = soup.instantiate("soup", tmp_path / "again", weights={"math": 0.25, "code": 0.75})
    assert files_of(tmp_path / "out") == files_of(tmp_path / "again")
    assert (found.plan.digest, found.coefficients) == (again.plan.digest, again.coefficients)


@pytest.mark.check
def test_domains_get_coefficients_that_serve_their_text(soup: Registry, zoo: Zoo, tmp_path: Path) -> None:
    soup.instantiate("soup", tmp_path / "all", weights=dict.fromkeys(DOMAINS, 1.0))
    found = {name: soup.instantiate("soup", tmp_path / name, weights={name: 1}).coefficients for name in DOMAINS}
    for one, other in combinations(DOMAINS, 2):
        assert max(abs(found[one][expert] - found[other][expert]) for expert in found[one]) > 0.05
    folders, data = [tmp_path / name for name in ("all", *DOMAINS)], {name: [zoo.test[name]] for name in DOMAINS}
    rows = soup.evaluate(folders, data, TestSettings(windows=1000, seq_len=32, device="cpu"))
    perplexity = {row.name: row.perplexity for row in rows}
    assert all(perplexity[name][name] < perplexity["all"][name] for name in DOMAINS)


@pytest.mark.check
def test_documents_give_the_weights_of_their_nearest_domains(soup: Registry, zoo: Zoo, tmp_path: Path) -> None:
    found = soup.instantiate("soup", tmp_path / "out", like=[zoo.test["german"]])
    assert found.domain_weights["german"] > 0.8
    both = soup.instantiate("soup", tmp_path / "both", like=[zoo.test["code"], zoo.test["math"]]).domain_weights
    assert sum(both.values()) == pytest.approx(1.0)
    assert min(both["code"], both["math"]) > 0.3
    same = soup.instantiate("soup", tmp_path / "same", weights=found.domain_weights)
    assert same.coefficients == found.coefficients


@pytest.mark.check
def test_coefficients_can_be_fitted_to_text(soup: Registry, zoo: Zoo, tmp_path: Path) -> None:
    settings = FitSettings(tokens=1024, steps=3, seq_len=32, batch_size=4, device="cpu")
    found = soup.instantiate("soup", tmp_path / "out", fit=[zoo.train["code"]], settings=settings)
    assert found.domain_weights == {}
    expected = soup.fit(["soup-1", "soup-2"], [zoo.train["code"]], settings=settings, base="soup")
    assert found.coefficients == expected.coefficients


TEXT = Path(__file__).parents[4] / "constraints.txt"
REFUSED: dict[str, tuple[str, dict[str, object], type[RegError], str, str]] = {
    "unknown domain": ("soup", {"weights": {"cod": 1}}, InvalidInputError, "'cod' is no domain of", "are: code, "),
    "negative": ("soup", {"weights": {"code": -1}}, InvalidInputError, "code is -1", "0 or more"),
    "not a number": ("soup", {"weights": {"code": float("nan")}}, InvalidInputError, "code is nan", "--weights code=1"),
    "zero": ("soup", {"weights": {"code": 0, "math": 0}}, InvalidInputError, "sum to 0", "code, german, math"),
    "nothing": ("soup", {}, InvalidInputError, "nothing says what", "--like FILE"),
    "two": ("soup", {"weights": {"code": 1}, "like": [TEXT]}, InvalidInputError, "--weights and --like", "drop all"),
    "expert": ("soup-1", {"weights": {"code": 1}}, InvalidInputError, "soup-1@1 is no soup", "reg instantiate soup"),
    "base": ("base", {"weights": {"code": 1}}, InvalidInputError, "base@1 is no soup", "reg train-soup"),
    "absent": ("soup", {"like": ["absent.jsonl"]}, CalibrationError, "absent.jsonl is not a file", "existing"),
}  # fmt: skip
"""Case → the soup and arguments, the error, and what its message and its hint say."""


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_input_is_refused_before_anything_is_written(soup: Registry, tmp_path: Path, case: str) -> None:
    ref, arguments, kind, message, hint = REFUSED[case]
    with pytest.raises(kind) as caught:
        soup.instantiate(ref, tmp_path / "out", **arguments)  # type: ignore[arg-type]
    assert message in caught.value.message
    assert hint in f"{caught.value.message} {caught.value.hint}"
    assert not (tmp_path / "out").exists()
    assert soup.compositions() == []
    with pytest.raises(CalibrationError, match="holds no text to be like"):
        soup.instantiate("soup", tmp_path / "out", like=[write_jsonl(tmp_path / "empty.jsonl", [""])])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    with pytest.raises(OutputError):
        soup.instantiate("soup", tmp_path / "out", weights={"code": 1})


def test_an_unknown_domain_among_hundreds_is_refused_in_one_line() -> None:
    module = import_module("registry.methods.soup.instantiate")
    names = [f"cluster-{number:03}" for number in range(1, 201)]
    shared: Any = SimpleNamespace(version=SimpleNamespace(ref="mix@1"), content={"soup": {"domains": names}})
    with pytest.raises(InvalidInputError) as caught:
        module._given(shared, {"cluster-13": 1.0})
    assert caught.value.message.startswith("'cluster-13' is no domain of mix@1; did you mean 'cluster-")
    assert caught.value.message.count("cluster-") == 4
    assert caught.value.hint == (
        "its domains are: cluster-001, cluster-002, cluster-003 and 197 more, 200 in all; reg show mix@1 lists them"
    )


def test_experts_of_two_soups_go_together_against_their_common_base_model_alone(soup: Registry) -> None:
    shared, base, *experts = (
        load_member(soup._workspace, soup.resolve(ref)) for ref in ("soup", "base", "soup-1", "soup-2")
    )
    content = {**experts[1].content, "soup": {"soup": "0" * 64, "number": 2}}
    other = replace(experts[1], version=replace(experts[1].version, content=content))
    for trunk in ("task-arithmetic", "ties"):
        recipe = Recipe(to="dense", trunk=trunk)
        make_plan(experts, shared, recipe)
        make_plan([experts[0], other], base, recipe)  # against what both were trained from
        with pytest.raises(
            IncompatibleError, match="soup-2@1 is an expert of the soup 000000000000, and soup@1"
        ) as caught:
            make_plan([experts[0], other], shared, recipe)
        assert "the base model that both soups were trained from" in str(caught.value.hint)
    make_plan([experts[0], other], None, Recipe(to="dense", trunk="mean"))


@pytest.mark.parametrize(("name", "purge"), [("soup", False), ("soup", True), ("soup-2", False), ("soup-2", True)])
def test_soup_of_which_a_version_was_opted_out_is_refused(
    soup: Registry, zoo: Zoo, tmp_path: Path, name: str, purge: bool
) -> None:
    soup.add_expert("alone", zoo.experts["code"])
    assert soup.opt_out("alone", receipt=tmp_path / "alone.json").trained_together == ()
    assert "trained_together" not in json.loads((tmp_path / "alone.json").read_bytes())["not_erased"]
    others = sorted({"soup@1", "soup-1@1", "soup-2@1"} - {f"{name}@1"})
    did = soup.opt_out(name, purge=purge, receipt=tmp_path / "receipt.json")
    assert sorted(did.trained_together) == others
    receipt = json.loads((tmp_path / "receipt.json").read_bytes())
    assert sorted(receipt["not_erased"]["trained_together"]) == others
    assert soup.opt_out(name, purge=purge).trained_together == did.trained_together  # as after an interrupted one
    assert soup.verify_receipt(tmp_path / "receipt.json").problems == []
    with pytest.raises(ConflictError, match="opted out"):
        soup.instantiate("soup", tmp_path / "out", weights={"code": 1})
    assert not (tmp_path / "out").exists()
