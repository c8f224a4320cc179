"""Proves: experts that differ in attention alone are remarked on when checked, registered and planned."""

from pathlib import Path
from typing import Any

import pytest
import torch

from registry import EnsembleRecipe, Recipe, Registry
from tests.conftest import SETTINGS, Zoo
from tests.models import make_model, save_checkpoint

EQUAL = "its MLPs equal those of base@1: a mixture routes between MLPs"


def attention_alone(folder: Path, tokenizer: Any, seed: int) -> Path:
    """Write the zoo's base model with other attention, as an adapter of attention alone would make it."""
    model, own = make_model("llama", 100), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "self_attn" in name:
                weight.add_(torch.randn(weight.shape, generator=own) * 0.02)
    return save_checkpoint(model, folder, tokenizer)


@pytest.fixture
def registry_of_adapters(registry: Registry, zoo: Zoo, tmp_path: Path, tokenizer: Any) -> Registry:
    registry.add_base("base", zoo.base)
    for seed, name in enumerate(("first", "second")):
        registry.add_expert(name, attention_alone(tmp_path / name, tokenizer, seed), settings=SETTINGS)
    registry.add_expert("math", zoo.experts["math"])
    return registry


def test_a_checkpoint_of_its_base_models_mlps_is_remarked_on(
    registry: Registry, zoo: Zoo, tmp_path: Path, tokenizer: Any
) -> None:
    registry.add_base("base", zoo.base)
    adapted = attention_alone(tmp_path / "adapted", tokenizer, 0)
    assert [note for note in registry.check(adapted).notes if note.startswith(EQUAL)]
    assert not [note for note in registry.check(zoo.experts["math"]).notes if "MLPs equal" in note]
    assert not [note for note in registry.check(zoo.base).notes if "MLPs equal" in note]  # the same weights


@pytest.mark.check
def test_a_plan_names_members_that_routing_cannot_tell_apart(registry_of_adapters: Registry) -> None:
    note = "the MLPs of first, second are equal, so routing between them changes nothing"
    notes = registry_of_adapters.plan(["first", "math", "second"], Recipe()).notes
    assert [one for one in notes if one.startswith(note)]
    for names, recipe in ((["first", "math"], Recipe()), (["first", "second"], EnsembleRecipe())):
        assert not [one for one in registry_of_adapters.plan(names, recipe).notes if "MLPs of" in one]


@pytest.mark.check
def test_registering_remarks_on_it(
    registry: Registry, zoo: Zoo, tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    remarks: list[str] = []
    monkeypatch.setattr("registry.registration.register.remark", lambda progress, text: remarks.append(text))
    registry.add_base("base", zoo.base)
    registry.add_expert("math", zoo.experts["math"])
    assert remarks == []
    registry.add_expert("adapted", attention_alone(tmp_path / "adapted", tokenizer, 0), settings=SETTINGS)
    assert [text for text in remarks if text.startswith(EQUAL)]
