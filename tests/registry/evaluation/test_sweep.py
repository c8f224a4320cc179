"""Proves: a sweep's rows are those of folders composed with each value, one at a time; wrong ones compose nothing."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import Recipe, Registry
from registry.errors import InvalidInputError, UnsupportedFamilyError
from registry.evaluation import Sweep
from registry.evaluation.methods import SWEPT
from registry.progress import Advance
from tests.conftest import Zoo
from tests.registry.evaluation.conftest import SETTINGS, Data

EXPERTS = ["code", "law", "math"]
RIDGE = Recipe(router="ridge", trunk="mean")
TIES = Recipe(router="ridge", trunk="ties", top_k=1, trunk_options={"density": 0.5})


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(
    ("recipe", "field", "values", "names"),
    [
        (RIDGE, "top_k", [1, 2, 3], ["top_k=1", "top_k=2", "top_k=3"]),  # DUME, Fig. 2b: experts per token
        (RIDGE, "lam", [1e-4, 1.0], ["lam=0.0001", "lam=1"]),  # DUME, Fig. 2c: ridge strength
        (TIES, "combine", ["mean", "sum"], ["combine=mean", "combine=sum"]),
        (Recipe(to="dense", trunk="dare"), "density", [0.5, 1.0], ["density=0.5", "density=1"]),
        (Recipe(to="ensemble"), "temperature", [0.5, 2.0], ["temperature=0.5", "temperature=2"]),
    ],
)
def test_rows_are_those_of_folders_composed_so(
    filled: Registry,
    data: Data,
    tmp_path: Path,
    recipe: Any,
    field: str,
    values: list[Any],
    names: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    at_once: list[int] = []

    @contextmanager
    def watching(_label: str, _total: int, _unit: str) -> Iterator[Advance]:
        at_once.append(len(list(scratch.rglob("swept/config.json"))))
        yield lambda amount: None

    recipes = list(Sweep({field: values}, recipe).recipes().values())
    filled.compose(EXPERTS, tmp_path / "last", recipes[-1])
    filled.progress = watching
    rows = filled.evaluate([], data, SETTINGS, experts=EXPERTS, recipe=recipe, sweep={field: values})
    assert [row.name for row in rows] == names
    assert max(at_once) == 1  # one composition at a time
    assert list(scratch.iterdir()) == []
    (made,) = filled.compositions()  # the others were composed to be scored, not made
    (stored,) = filled.evaluations(made)
    assert stored.document["figures"]["perplexity"] == rows[-1].perplexity
    for number, (row, own) in enumerate(zip(rows, recipes, strict=True)):
        folder = tmp_path / str(number)
        filled.compose(EXPERTS, folder, own)
        (own_row,) = filled.evaluate([folder], data, SETTINGS)
        assert row.perplexity == own_row.perplexity
        assert row.score == own_row.score
        assert row.experts_per_token == own_row.experts_per_token
    assert len({tuple(row.perplexity.values()) for row in rows}) == len(rows)


def test_every_field_that_can_be_swept_has_one_value() -> None:
    assert [name for name in SWEPT if isinstance(getattr(Recipe(), name, None), Mapping)] == []


@pytest.mark.check(after=14)
@pytest.mark.parametrize(
    ("recipe", "sweep", "message", "hint"),
    [
        (RIDGE, {"lamb": [1]}, r"there is no field 'lamb'; did you mean 'lam'\?", "fields to sweep are"),
        (RIDGE, {"trunk": ["mean"]}, "cannot sweep: trunk chooses a method", "--methods"),
        (RIDGE, {"weights": [1.0]}, "weights is no field of one number or word", "fields to sweep are"),
        (RIDGE, {"device": ["cpu"]}, "device is no field of one number or word", "fields to sweep are"),
        (RIDGE, {"lam": [0.1], "top_k": [1]}, "a sweep is over one field, and there are 2: lam", "once for each"),
        (RIDGE, {"lam": [0.1, -1.0]}, "lam is -1.0, it must be a finite number, 0 or more", "default"),
        (RIDGE, {"top_k": [1, 4]}, "top-k is 4, it must be from 1 to 3", "--top-k 3"),
        (RIDGE, {"top_k": [1.5]}, "top-k is 1.5, it must be a whole number", "default"),
        (RIDGE, {"lam": []}, "there is no value of lam to sweep", "--sweep lam=V1,V2"),
        (RIDGE, {"lam": 0.1}, "the values of lam must be a list", "[V1, V2]"),
        (RIDGE, ["lam"], "a sweep must be a field and its values", "such as"),
        (RIDGE, {"lam": [1.0, 1]}, "lam=1 is given twice", "once"),
        (RIDGE, {"scale": [1.0]}, "trunk method 'mean' has no option 'scale'", "--recipe FILE"),
        (Recipe(), {"lam": [1.0]}, "lam has no part in router method 'context'", "--recipe FILE"),
        (RIDGE, {"context_window": [1.0]}, "context_window has no part in router method 'ridge'", "--recipe FILE"),
        (RIDGE, {"gating": ["topk-softmax", "softmax-topk"]}, "host 'mixtral' makes the weights", ""),
        (Recipe(to="ensemble"), {"scale": [1.0]}, "scale has no part in an ensemble whose members", "--recipe FILE"),
    ],
)
def test_wrong_sweeps_compose_nothing(
    filled: Registry, data: Data, monkeypatch: pytest.MonkeyPatch, recipe: Any, sweep: Any, message: str, hint: str
) -> None:
    monkeypatch.setattr("registry.evaluation.service.write_plan", lambda *_: pytest.fail("something was composed"))
    with pytest.raises((InvalidInputError, UnsupportedFamilyError), match=message) as error:
        filled.evaluate([], data, SETTINGS, experts=EXPERTS, recipe=recipe, sweep=sweep)
    assert hint in (error.value.hint or "")


@pytest.mark.check
def test_command(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("experts: [code, math]\ntrunk: mean\nrouter: ridge\n")
    test = [f"--data=code={zoo.test['code']}", "--windows=2", "--seq-len=32"]

    def reg(*words: str) -> Result:
        return CliRunner().invoke(main, ["--home", str(filled.home.path), "evaluate", *words])

    found = json.loads(reg("--recipe", str(recipe), "--sweep", "top-k=1,2", *test, "--json").stdout)
    assert [row["name"] for row in found] == ["top_k=1", "top_k=2"]
    table = reg("--experts", "code,math", "--sweep", "context_window=0,64", *test).stdout
    assert "context_window=0 " in table
    assert "rank" in table
    for words, message in (
        (["--experts", "code", "--sweep", "lam=x"], "'x' is not a value of lam, which is a finite number"),
        (["--experts", "code", "--sweep", "lam=1", "--sweep", "lam=2"], "lam is given twice"),
        (["--experts", "code", "--sweep", "lam"], "'lam' is not of the form FIELD=V1,V2"),
        (["--experts", "code", "--sweep", "lambda=1"], "there is no field 'lambda'"),
        (["--sweep", "lam=1"], "give a FOLDER, or --experts and --methods"),
        (["--experts", "code", "--recipe", str(recipe)], "--recipe goes with --sweep"),
    ):
        failed = reg(*words, *test)
        assert failed.exit_code, words
        assert message in failed.stderr
        assert "Traceback" not in failed.stderr
