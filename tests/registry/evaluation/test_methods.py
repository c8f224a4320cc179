"""Proves: each method's row is that of the folder it composes, seeds become mean and spread, and nothing is left."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from registry import Recipe, Registry, TestSettings, TrainSettings
from registry.composition import EnsembleRecipe, HeteroRecipe, SimoeRecipe
from registry.errors import IncompatibleError, InvalidInputError
from registry.evaluation import METHODS, Method, Row
from registry.evaluation.benchmark import TokenizerSource
from registry.evaluation.methods import DENSE, SEEDS, TRAIN_STEPS, TRAINED_SEEDS, named_methods
from registry.evaluation.results import over_seeds
from registry.evaluation.service import composer_of
from registry.evaluation.table import Composed, Wanted, evaluate
from registry.progress import Advance, silent
from tests.conftest import Zoo

SETTINGS = TestSettings(windows=2, seq_len=32, batch_size=3)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_a_recipe(name: str) -> None:
    for run in METHODS[name].runs():
        assert run.pop("train_seed", 0) in range(TRAINED_SEEDS)
        assert run.pop("train_steps", TRAIN_STEPS) == TRAIN_STEPS
        if run.get("to") in ("ensemble", "hetero"):
            kind = EnsembleRecipe if run.pop("to") == "ensemble" else HeteroRecipe
            assert kind(**run)
        elif run.get("to") == "simoe":
            assert SimoeRecipe(**{key: value for key, value in run.items() if key != "to"})
        else:
            assert Recipe(**run)


@pytest.fixture
def few() -> Iterator[list[str]]:
    """Leave a few methods in the table, and give their names; after that it is as it was, in its order."""
    before = dict(METHODS)
    for name in set(METHODS) - {"mean-own", "base-own", "regmean-paper-top-2", "context", "oracle-context", "btm"}:
        del METHODS[name]
    yield list(METHODS)
    METHODS.clear()
    METHODS.update(before)


def test_names_are_those_of_the_table_in_its_order() -> None:
    assert named_methods(["all"]) == [*DENSE, *METHODS]
    assert named_methods(["regmean", "base", "regmean"]) == ["base", "regmean"]
    with pytest.raises(InvalidInputError, match=r"method 'averge' is not one of base, .*; did you mean 'average'\?"):
        named_methods(["averge"])


@pytest.mark.check
def test_rows_are_those_of_the_folders_composed_so(
    filled: Registry, zoo: Zoo, tmp_path: Path, few: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    data = {name: [zoo.test[name]] for name in ("code", "math")}
    rows = filled.evaluate([], data, SETTINGS, experts=["math", "code"], methods=["all"])
    assert [row.name for row in rows] == ["base base@1", "expert code", "expert math", "average", *few]
    assert filled.compositions() == []  # composed to be scored, not made
    assert list(scratch.iterdir()) == []
    filled.compose(["code", "math"], tmp_path / "base", Recipe(trunk="base", router="ridge", top_k=1, normalize=True))
    filled.compose(["code", "math"], tmp_path / "default")
    made = filled.evaluate([tmp_path / "base", tmp_path / "default"], data, SETTINGS, oracle=True)
    folders = {row.name: row for row in made}
    by_name = {row.name: row for row in rows}
    for method, folder in (("context", "default"), ("base-own", "base"), ("oracle-context", "default oracle")):
        assert by_name[method].perplexity == folders[folder].perplexity
        assert by_name[method].score == folders[folder].score
        assert by_name[method].accuracy == folders[folder].accuracy
    filled.evaluate([], data, SETTINGS, experts=["math", "code"], methods=["context"])
    (default,) = [c for c in filled.compositions() if c.document["base"] is None]
    (stored,) = filled.evaluations(default)  # this very composition was made, so its figures are worth keeping
    assert stored.document["figures"]["perplexity"] == by_name["context"].perplexity


@pytest.mark.check
def test_method_that_does_not_fit_is_left_out_of_all_and_refused_by_name(
    filled: Registry, zoo: Zoo, few: list[str]
) -> None:
    said: list[str] = []

    @contextmanager
    def listening(label: str, total: int, unit: str) -> Iterator[Advance]:
        said.extend([] if unit else [label])
        yield lambda amount: None

    filled.opt_out("base")
    filled.progress = listening
    data = {"code": [zoo.test["code"]]}
    rows = filled.evaluate([], data, SETTINGS, experts=["code"], methods=["all"])
    assert [row.name for row in rows] == [
        "expert code",
        *(name for name in few if name not in ("base-own", "regmean-paper-top-2")),
    ]
    scores = {row.name: row.average for row in rows}  # one expert, composed in any way, is that expert
    assert scores.pop("btm") == pytest.approx(100.0, rel=1e-6)  # it mixes probabilities: logits are rounded once more
    assert set(scores.values()) == {100.0}
    assert said == [
        "no row for a base model: none is registered",
        "no row for averaged weights: they take experts of two domains, and there is one, code",
        "no row for base-own: this recipe needs the base model, and none is registered",
        "no row for regmean-paper-top-2: top-k is 2, it must be 1, as there is one member",
    ]
    with pytest.raises(IncompatibleError, match="this recipe needs the base model"):
        filled.evaluate([], data, SETTINGS, experts=["code"], methods=["base-own"])
    for experts, methods in (([], ["all"]), (["code"], [])):
        with pytest.raises(InvalidInputError, match="experts and methods go together"):
            filled.evaluate([], data, SETTINGS, experts=experts, methods=methods)
    with pytest.raises(InvalidInputError, match="methods must be a list"):
        filled.evaluate([], data, SETTINGS, experts=["code"], methods="all")


@pytest.mark.check
def test_seeds_become_mean_and_standard_deviation(filled: Registry, zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "drawn", Method({"trunk": "base"}, seeds=4))
    make, asked, first = composer_of(filled._workspace, ["code", "math"]), list[dict[str, Any]](), [1]

    def compose(settings: Mapping[str, Any], folder: Path) -> None:
        asked.append(dict(settings))
        weights = {"code": float(settings["seed"] + first[-1])}
        make({"trunk": settings["trunk"], "router": "ridge", "weights": weights}, folder)

    registered = [filled.member(version) for version in filled.versions() if version.name in ("code", "math")]
    plan = filled.plan(["code", "math"])

    def rows(*methods: str, seeds: int | None = None) -> list[Row]:
        data = {"code": [zoo.test["code"]], "math": [zoo.test["math"]]}
        return evaluate(
            [],
            data,
            registered,
            SETTINGS,
            progress=silent,
            wanted=Wanted(methods=methods, seeds=seeds),
            composed=Composed(TokenizerSource.of_plan(plan), compose),
        )

    (row,) = rows("drawn", seeds=3)
    assert asked == [{"trunk": "base", "seed": seed} for seed in range(3)]
    single = []
    for number in (1, 2, 3):
        first.append(number)
        single += rows("drawn", seeds=1)
    assert [r.spread for r in single] == [None] * 3
    assert row == over_seeds(single)
    assert row.spread is not None
    assert row.spread.seeds == 3
    for domain in ("code", "math"):
        assert row.perplexity[domain] == fmean(r.perplexity[domain] for r in single)
        assert row.spread.score[domain] == stdev(r.score[domain] for r in single)
        assert row.accuracy[domain] == [fmean(r.accuracy[domain][layer] for r in single) for layer in range(2)]
    averages = [r.average for r in single if r.average is not None]
    assert row.spread.average == stdev(averages)
    assert row.average is not None
    assert abs(row.average - fmean(averages)) < 1e-9


@pytest.mark.check
def test_seeds_of_trained_routers_are_those_of_the_training(
    filled: Registry, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe: dict[str, Any] = {"trunk": "base", "router": "ridge", "top_k": 1}
    monkeypatch.setitem(METHODS, "trained", Method({**recipe, "train_steps": 2}, TRAINED_SEEDS))
    data = {"code": [zoo.test["code"]], "math": [zoo.test["math"]]}
    (row,) = filled.evaluate([], data, SETTINGS, experts=["code", "math"], methods=["trained"], seeds=2)
    filled.compose(["code", "math"], tmp_path / "moe", Recipe(**recipe))
    single = []
    for seed in (0, 1):
        folder = tmp_path / f"seed {seed}"
        filled.train_router(tmp_path / "moe", folder, ["code", "math"], TrainSettings(steps=2, seed=seed))
        single += filled.evaluate([folder], data, SETTINGS)
    assert single[0].perplexity["code"] != single[1].perplexity["code"]
    assert row.perplexity == {name: fmean(r.perplexity[name] for r in single) for name in data}
    assert row.spread is not None
    assert row.spread.seeds == 2
    assert [method for method in METHODS if METHODS[method].seeds == SEEDS] == ["random"]
    assert [name for name, method in METHODS.items() if "train_steps" in method.settings] == [
        name for name, method in METHODS.items() if method.seeds == TRAINED_SEEDS
    ]


@pytest.mark.parametrize(("methods", "seeds"), [(["random"], 0), ([], 3)])
def test_seeds_without_a_method_or_none_are_refused(filled: Registry, zoo: Zoo, methods: list[str], seeds: int) -> None:
    experts = ["code"] if methods else []
    with pytest.raises(InvalidInputError, match="the least is 1" if methods else "seeds need methods"):
        filled.evaluate(
            [zoo.base], {"code": [zoo.test["code"]]}, SETTINGS, experts=experts, methods=methods, seeds=seeds
        )
