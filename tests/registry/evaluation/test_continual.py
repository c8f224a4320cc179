"""Proves: the matrix is that of the compositions so far, and its figures are those of the papers."""

from pathlib import Path

import pytest

from registry import Recipe, Registry, TestSettings
from registry.errors import InvalidInputError
from registry.evaluation import Continual
from tests.conftest import Zoo

SETTINGS = TestSettings(windows=2, seq_len=32, batch_size=3)


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
