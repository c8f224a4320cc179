"""Proves: each method's row is that of the folder it composes, seeds become mean and spread, and nothing is left.

And: the matrix of a schedule is that of the compositions so far, and its figures are those of the papers.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from registry import Recipe, Registry, TrainSettings
from registry.composition.method import SEEDS, TRAIN_STEPS, TRAINED_SEEDS, Compared
from registry.errors import IncompatibleError, InvalidInputError
from registry.evaluation import METHODS, Continual, Row
from registry.evaluation.methods import DENSE, named_methods
from registry.evaluation.results import over_seeds
from registry.evaluation.service import composer_of
from tests.conftest import Zoo
from tests.registry.evaluation.conftest import PAIR, SETTINGS, Data
from tests.remarks import Remarks


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_a_recipe(name: str) -> None:
    for run in METHODS[name].runs():
        assert run.pop("train_seed", 0) in range(TRAINED_SEEDS)
        assert run.pop("train_steps", TRAIN_STEPS) == TRAIN_STEPS
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
    filled: Registry, data: Data, tmp_path: Path, few: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
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
    filled: Registry, zoo: Zoo, few: list[str], remarks: Remarks
) -> None:
    filled.opt_out("base")
    data = {"code": [zoo.test["code"]]}
    rows = filled.evaluate([], data, SETTINGS, experts=["code"], methods=["all"])
    rest = [name for name in few if name not in ("base-own", "regmean-paper-top-2")]
    assert [row.name for row in rows] == ["expert code", *rest]
    scores = {row.name: row.average for row in rows}  # one expert, composed in any way, is that expert
    assert scores.pop("btm") == pytest.approx(100.0, rel=1e-6)  # it mixes probabilities: logits are rounded once more
    assert set(scores.values()) == {100.0}
    assert remarks.sentences == [
        "no row for a base model: none is registered",
        "no row for averaged weights: they take experts of two domains, and there is one, code",
        "no row for regmean-paper-top-2: top-k is 2, it must be 1, as there is one member",
        "no row for base-own: this recipe needs the base model, and none is registered",
    ]
    with pytest.raises(IncompatibleError, match="this recipe needs the base model"):
        filled.evaluate([], data, SETTINGS, experts=["code"], methods=["base-own"])
    for experts, methods in (([], ["all"]), (["code"], [])):
        with pytest.raises(InvalidInputError, match="experts and methods go together"):
            filled.evaluate([], data, SETTINGS, experts=experts, methods=methods)
    with pytest.raises(InvalidInputError, match="methods must be a list"):
        filled.evaluate([], data, SETTINGS, experts=["code"], methods="all")
    with pytest.raises(InvalidInputError, match="the least is 1"):
        filled.evaluate([], data, SETTINGS, experts=["code"], methods=["btm"], seeds=0)
    with pytest.raises(InvalidInputError, match="seeds need methods"):
        filled.evaluate([zoo.base], data, SETTINGS, seeds=3)


@pytest.mark.check
def test_seeds_become_mean_and_standard_deviation(
    filled: Registry, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "drawn", Compared({"trunk": "base"}, seeds=4))
    make, asked, first = composer_of(filled._workspace, PAIR), list[dict[str, Any]](), [1]

    def compose(settings: Mapping[str, Any], folder: Path) -> None:
        asked.append(dict(settings))
        weights = {"code": float(settings["seed"] + first[-1])}
        make({"trunk": settings["trunk"], "router": "ridge", "weights": weights}, folder)

    monkeypatch.setattr("registry.evaluation.service.composer_of", lambda *_: compose)

    def rows(seeds: int) -> list[Row]:
        return filled.evaluate([], data, SETTINGS, experts=PAIR, methods=["drawn"], seeds=seeds)

    (row,) = rows(3)
    assert asked == [{"trunk": "base", "seed": seed} for seed in range(3)]
    single = []
    for number in (1, 2, 3):
        first.append(number)
        single += rows(1)
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
    filled: Registry, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe: dict[str, Any] = {"trunk": "base", "router": "ridge", "top_k": 1}
    monkeypatch.setitem(METHODS, "trained", Compared({**recipe, "train_steps": 2}, TRAINED_SEEDS))
    (row,) = filled.evaluate([], data, SETTINGS, experts=PAIR, methods=["trained"], seeds=2)
    filled.compose(PAIR, tmp_path / "moe", Recipe(**recipe))
    single = []
    for seed in (0, 1):
        folder = tmp_path / f"seed {seed}"
        filled.train_router(tmp_path / "moe", folder, PAIR, TrainSettings(steps=2, seed=seed))
        single += filled.evaluate([folder], data, SETTINGS)
    assert single[0].perplexity["code"] != single[1].perplexity["code"]
    assert row.perplexity == {name: fmean(r.perplexity[name] for r in single) for name in data}
    assert row.spread is not None
    assert row.spread.seeds == 2
    assert [method for method in METHODS if METHODS[method].seeds == SEEDS] == ["random"]
    assert [name for name, method in METHODS.items() if "train_steps" in method.settings] == [
        name for name, method in METHODS.items() if method.seeds == TRAINED_SEEDS
    ]


def test_figures_of_a_matrix() -> None:
    found = Continual(("a", "b", "c"), [], [[90.0], [94.0, 80.0], [85.0, 82.0, 70.0]])
    assert found.average == (85 + 82 + 70) / 3
    assert found.forgetting == ((94 - 85) + (80 - 82)) / 2  # the best before the last step, less the last
    assert found.backward_transfer == ((85 - 90) + (82 - 80)) / 2
    earlier = found.until(2)
    assert (earlier.average, earlier.forgetting, earlier.backward_transfer) == (87.0, 90 - 94, 94 - 90)
    first = found.until(1)
    assert (first.average, first.forgetting, first.backward_transfer) == (90.0, None, None)
    assert found.document()["forgetting"] == found.forgetting


@pytest.mark.check
def test_each_step_is_the_composition_of_those_so_far(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    filled.add_expert("math", zoo.experts["law"])
    data = {name: [zoo.test[name]] for name in ("math", "code", "biomed")}
    recipe = Recipe(top_k=2, weights={"biomed": 2.0})
    refs = ["math@1", "code", "biomed"]  # not the newest math, and not in the order of names
    found = filled.continual(refs, data, SETTINGS, recipe)
    assert found.schedule == ("math", "code", "biomed")
    assert found.score[0] == [100.0]  # one expert alone is itself
    assert filled.compositions() == []
    for step, chosen in ((2, Recipe(top_k=2)), (3, recipe)):
        filled.compose(refs[:step], tmp_path / f"{step}", chosen)
        (row,) = filled.evaluate([tmp_path / f"{step}"], data, SETTINGS)
        names = found.schedule[:step]
        assert found.perplexity[step - 1] == [row.perplexity[name] for name in names]
        assert found.score[step - 1] == [row.score[name] for name in names]


def test_schedule_and_text_go_together(filled: Registry, zoo: Zoo) -> None:
    text = [zoo.test["code"]]
    with pytest.raises(InvalidInputError, match="there is no test text for math") as caught:
        filled.continual(["code", "math"], {"code": text})
    assert caught.value.hint == "give --data for each of the schedule: --data code=FILE --data math=FILE"
    with pytest.raises(InvalidInputError, match="there is no expert in the schedule for law"):
        filled.continual(["code"], {"code": text, "law": text})
    with pytest.raises(InvalidInputError, match="schedule must be a list"):
        filled.continual("code", {"code": text})
    with pytest.raises(InvalidInputError):
        filled.continual([], {})
