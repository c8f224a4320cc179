"""Proves: experts whose tokens routing cannot tell apart are told when they are registered, others are not."""

from pathlib import Path

import pytest

from registry import PassSettings, Registry
from registry.maths.overlap import Overlap
from registry.registration.expert_overlap import ExpertOverlap, compared_layers, summarise
from tests.conftest import Zoo
from tests.models import sentences, write_jsonl
from tests.remarks import Remarks

SETTINGS = PassSettings(tokens=2048, seq_len=32, batch_size=8)


@pytest.mark.check
def test_same_text_again_overlaps_and_other_text_does_not(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """An expert is not compared with its own versions, and none with too few tokens."""

    def added(name: str, text: Path, settings: PassSettings = SETTINGS) -> list[ExpertOverlap]:
        folder = zoo.experts["code" if name == "coder" else name]
        return list(registry.add_expert(name, folder, data=[text], settings=settings).overlaps)

    registry.add_base("base", zoo.base)
    for name in ("code", "german"):
        added(name, zoo.train[name])
    found = added("coder", write_jsonl(tmp_path / "more.jsonl", sentences("code", 200, seed=7)))
    assert [overlap.ref for overlap in found] == ["code@1", "german@1"]
    assert found[0].is_indistinct
    assert found[0].routing > found[1].routing + 0.15
    assert list(found[0].layers) == [0, 1]
    registry.opt_out("coder")
    assert [overlap.ref for overlap in added("code", zoo.train["law"])] == ["german@1"]
    assert added("law", zoo.train["law"], PassSettings(tokens=2, seq_len=2, batch_size=1)) == []
    assert {overlap.ref for overlap in added("math", zoo.train["math"])} == {"code@1", "code@2", "german@1"}


def test_mean_over_layers_decides() -> None:
    apart, alike = Overlap(5.0, 0.01, 0.5), Overlap(0.1, 0.96, 0.9)
    assert not ExpertOverlap("a@1", {0: apart, 1: alike}).is_indistinct
    assert ExpertOverlap("a@1", {0: apart, 2: alike, 4: alike}).is_indistinct


def test_deep_networks_are_compared_at_layers_spread_evenly(
    filled: Registry, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compared_layers(2) == [0, 1]
    assert compared_layers(32) == [2, 6, 10, 14, 18, 22, 26, 30]
    monkeypatch.setattr("registry.registration.expert_overlap.LAYERS", 1)
    found = filled.check(zoo.experts["code"], data=[zoo.train["code"]], settings=SETTINGS).overlaps
    assert found
    assert {tuple(overlap.layers) for overlap in found} == {(1,)}


def test_statistics_of_no_activations_are_told_and_not_compared(filled: Registry) -> None:
    code, told = filled.member(filled.resolve("code")), Remarks()
    forged = [code.statistics("mlp_input", number) for number in range(2)]
    for statistics in forged:
        statistics.matrix.diagonal()[:-1].mul_(-1)  # no sum of squares
    assert summarise(forged, told) == {}
    assert told.sentences[-1].startswith("its text is not compared: a Gram is that of no activations")
