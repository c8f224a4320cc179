"""Proves: experts whose tokens routing cannot tell apart are told when they are registered, others are not."""

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from registry import PassSettings, Registry
from registry.maths.overlap import Overlap
from registry.progress import Advance, silent
from registry.registration.expert_overlap import ExpertOverlap, compared_layers, summarise
from tests.conftest import Zoo
from tests.models import sentences, write_jsonl

SETTINGS = PassSettings(tokens=2048, seq_len=32, batch_size=8)


@pytest.fixture
def two(registry: Registry, zoo: Zoo) -> Registry:
    """A registry with two experts of different text, each with 2,048 tokens."""
    registry.add_base("base", zoo.base)
    for name in ("code", "german"):
        registry.add_expert(name, zoo.experts[name], data=[zoo.train[name]], settings=SETTINGS)
    return registry


@pytest.mark.check
def test_same_text_again_overlaps_and_other_text_does_not(two: Registry, zoo: Zoo, tmp_path: Path) -> None:
    more = write_jsonl(tmp_path / "more.jsonl", sentences("code", 200, seed=7))
    found = two.add_expert("coder", zoo.experts["code"], data=[more], settings=SETTINGS).overlaps
    assert [overlap.ref for overlap in found] == ["code@1", "german@1"]
    assert found[0].is_indistinct
    assert found[0].routing > found[1].routing + 0.15
    assert list(found[0].layers) == [0, 1]


def test_mean_over_layers_decides() -> None:
    apart, alike = Overlap(5.0, 0.01, 0.5), Overlap(0.1, 0.96, 0.9)
    assert not ExpertOverlap("a@1", {0: apart, 1: alike}).is_indistinct
    assert ExpertOverlap("a@1", {0: apart, 2: alike, 4: alike}).is_indistinct


@pytest.mark.check
def test_an_expert_is_not_compared_with_its_own_versions(two: Registry, zoo: Zoo) -> None:
    found = two.add_expert("code", zoo.experts["code"], data=[zoo.train["law"]], settings=SETTINGS).overlaps
    assert [overlap.ref for overlap in found] == ["german@1"]


@pytest.mark.check
def test_too_few_tokens_are_not_compared(two: Registry, zoo: Zoo) -> None:
    few = PassSettings(tokens=2, seq_len=2, batch_size=1)
    assert two.add_expert("few", zoo.experts["law"], data=[zoo.train["law"]], settings=few).overlaps == ()
    found = two.add_expert("math", zoo.experts["math"], data=[zoo.train["math"]], settings=SETTINGS).overlaps
    assert {overlap.ref for overlap in found} == {"code@1", "german@1"}


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
    code, said = filled.member(filled.resolve("code")), list[str]()
    forged = []
    for number in range(2):
        statistics = code.statistics("mlp_input", number)
        statistics.matrix.diagonal()[:-1].mul_(-1)  # no sum of squares
        forged.append(statistics)

    def noting(what: str, *_: object) -> AbstractContextManager[Advance]:
        said.append(what)
        return silent(what, 0, "")

    assert summarise(forged, noting) == {}
    assert said[-1].startswith("its text is not compared: a Gram is that of no activations")
