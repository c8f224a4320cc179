"""Proves: routing is what the routers decide, oracle routing is the domain's own expert, sizes are the plan's."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Recipe, Registry, TestSettings
from registry.calibration import Calibration
from registry.evaluation import scoring, text_windows
from registry.evaluation.scoring import Model, Tally, relative_time
from registry.io.model_folder import MARKER
from registry.runtime.gates import RoutingRecord, force_expert, gates
from registry.runtime.loading import load_model
from tests.conftest import Zoo
from tests.registry.evaluation.conftest import Data
from tests.remarks import Remarks

RIDGE = Recipe(router="ridge")
SETTINGS = TestSettings(windows=4, seq_len=32, batch_size=3)


@pytest.mark.check
def test_one_expert_gets_everything_and_its_oracle_is_the_expert(
    filled: Registry, zoo: Zoo, data: Data, tmp_path: Path
) -> None:
    """A model without experts has neither routing nor an oracle."""
    filled.compose(["code"], tmp_path / "alone")
    filled.progress = heard = Remarks()
    rows = {row.name: row for row in filled.evaluate([tmp_path / "alone"], data, SETTINGS, oracle=True, baselines=True)}
    passes = [label for label in heard.labels if label.startswith("evaluating ")]
    assert passes[-2:] == ["evaluating alone", "evaluating alone with perfect routing"]
    assert "evaluating averaged weights" in passes
    assert len(set(passes)) == len(passes) == 6
    alone, oracle, expert = rows["alone"], rows["alone oracle"], rows["expert code"]
    assert alone.accuracy == {"code": [1.0, 1.0]}
    assert alone.load == {"code": [1.0, 1.0]}
    assert alone.perplexity == expert.perplexity
    assert oracle.perplexity == {"code": expert.perplexity["code"]}  # math is no member: there is no oracle for it
    assert oracle.score == {"code": 100.0}
    assert oracle.average is None
    assert oracle.load == {}
    assert expert.parameters == expert.active_parameters
    assert alone.relative_time is None
    (dense,) = filled.evaluate([zoo.base], data, SETTINGS, oracle=True, speed=True)
    assert (dense.accuracy, dense.load, dense.relative_time) == ({}, {}, None)
    assert dense.parameters == dense.active_parameters


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("recipe", [RIDGE, RIDGE.replace(top_k=1), RIDGE.replace(host="remote-code")], ids=str)
def test_routing_is_what_the_routers_decide(filled: Registry, zoo: Zoo, tmp_path: Path, recipe: Recipe) -> None:
    names = ["code", "law", "math"]
    plan = filled.compose(names, tmp_path / "moe", recipe)
    data = {name: [zoo.test[name]] for name in names}
    row, oracle = filled.evaluate([tmp_path / "moe"], data, SETTINGS, oracle=True)
    assert (row.parameters, row.active_parameters) == (plan.parameters, plan.active_parameters)
    assert list(row.load) == names
    for layer in range(2):
        assert math.isclose(sum(row.load[name][layer] for name in names), 1, abs_tol=1e-6)
    assert math.isclose(sum(row.overall_load.values()), 1, abs_tol=1e-6)
    assert len({tuple(share) for share in row.load.values()}) == 3

    model, inputs = load_model(tmp_path / "moe", "float32", "cpu"), []
    windows = text_windows(data, tmp_path / "moe", SETTINGS)
    (first, *_) = found = gates(model)
    assert len(found) == 2
    first.module.register_forward_hook(lambda module, given, _: inputs.append(given[0].reshape(-1, 32)))
    with torch.no_grad():
        for number, name in enumerate(names):
            inputs.clear()
            model(input_ids=windows[name].ids.long())
            weight: Any = first.module.weight
            best = (inputs[0] @ weight.T).argmax(dim=-1)
            assert row.accuracy[name][0] == (best == number).double().mean().item()
    # oracle routing: as if every other expert's place held the domain's own
    with torch.no_grad(), force_expert(model, 1):
        logits = model(input_ids=windows["law"].ids.long()).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows["law"].ids[:, 1:].flatten().long())
    assert math.isclose(oracle.perplexity["law"], math.exp(loss.item()), rel_tol=1e-5)


def test_mixture_of_unknown_members_has_numbered_load_and_no_accuracy(filled: Registry, moe: Path, data: Data) -> None:
    document = json.loads((moe / MARKER).read_text())
    del document["members"][0]
    (moe / MARKER).write_text(json.dumps(document))
    (row,) = filled.evaluate([moe], data, SETTINGS)
    assert list(row.load) == ["0", "1"]
    assert row.accuracy == {}


@pytest.mark.check
def test_a_text_of_fewer_windows_is_remarked_on(filled: Registry, zoo: Zoo, data: Data, remarks: Remarks) -> None:
    filled.evaluate([zoo.base], data, SETTINGS)
    assert remarks.sentences == []
    filled.evaluate([zoo.base], data, replace(SETTINGS, windows=5000))
    (said,) = remarks.sentences
    assert said.startswith("domains of fewer than 5000 windows are scored on all their text: ")
    assert re.search(r": code has \d+, math has \d+$", said)


def test_padding_is_routed_nowhere_and_the_first_choice_counts() -> None:
    tally = Tally(1, 3)
    chosen = torch.tensor([[0, 1], [2, 1], [1, 0], [1, 2]])
    weights = torch.tensor([[0.75, 0.25], [0.5, 0.5], [1.0, 0.0], [0.75, 0.25]])
    keep = torch.tensor([[True, True], [True, False]])
    tally.add("b", [RoutingRecord(0, chosen=[chosen], weights=[weights])], keep)
    tally.add("z", [RoutingRecord(0, chosen=[chosen], weights=[weights])], ~keep)
    names = ["a", "b", "c"]
    assert tally.figures(names)["accuracy"] == {"b": [1 / 3]}
    assert tally.load(names) == {"a": [0.75 / 4], "b": [(0.25 + 0.5 + 1 + 0.75) / 4], "c": [0.75 / 4]}


def test_time_is_the_median_of_the_ratios_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def model(*durations: float) -> Model:
        left = list(durations)

        def run(**_: Any) -> None:
            clock[0] += left.pop(0)

        run.device = torch.device("cpu")  # type: ignore[attr-defined]
        return Model("x", run, ())

    monkeypatch.setattr(scoring, "perf_counter", lambda: clock[0])
    windows = Calibration(torch.zeros(2, 4, dtype=torch.int32), torch.full((2,), 4, dtype=torch.int32), "x")
    monkeypatch.setattr(scoring, "ROUNDS", 5)
    # The first turn is not counted; a slow time of both is no matter, nor is one that was disturbed.
    assert relative_time(model(900, 3, 30, 6, 900, 3), model(1, 2, 20, 4, 2, 90), windows, 2) == 1.5


@pytest.mark.check
def test_speed_is_measured_where_asked(filled: Registry, moe: Path, zoo: Zoo, data: Data, remarks: Remarks) -> None:
    (row,) = filled.evaluate([moe], {"code": data["code"]}, SETTINGS, speed=True)
    assert row.relative_time is not None
    assert row.relative_time > 0
    (row,) = filled.evaluate([moe], {"law": [zoo.test["law"]]}, SETTINGS, speed=True, oracle=True)
    assert row.relative_time is None
    assert remarks.sentences[-2:] == [
        "no relative time for moe: none of its experts is registered for a domain",
        "no row with perfect routing for moe: no domain is a member of it",
    ]
