"""Proves: before it reads text or loads a model, a training says what it trains: as many weights as get gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from registry import ExpertTraining, MixtureTraining, Recipe, Registry, TrainSettings
from registry.checkpoint import Checkpoint
from registry.progress import Advance
from registry.runtime.gates import gates
from registry.runtime.loading import load_model
from registry.training.expert.trainable import Trainable, trained_weights
from registry.training.mixture.mixture_weights import let_train
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint, train_tokenizer

AMOUNT: dict[str, Any] = {"tokens": 3 * 2 * 32, "batch_size": 2, "seq_len": 32, "device": "cpu", "dtype": "float32"}


@pytest.fixture
def events(registry: Registry) -> list[str]:
    """Labels of progress and remarks, in their order."""
    labels: list[str] = []

    @contextmanager
    def keeping(label: str, total: int, unit: str) -> Iterator[Advance]:
        labels.append(label)
        yield lambda amount: None

    registry.progress = keeping
    return labels


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, "the MLPs of base@1"),
        ({"trunk": "free"}, "all weights of base@1"),
        ({"mlp": "lora:3"}, "a change of rank 3 of the MLPs of base@1"),
        ({"mlp": "lora:3", "trunk": "free"}, "the trunk and a change of rank 3 of the MLPs of base@1"),
        ({"coordinate": True}, "the MLPs of base@1 and router rows"),
        ({"coordinate": True, "router_bias": True}, "the MLPs of base@1 and router rows"),
    ],
)
def test_of_an_expert(
    registry: Registry, zoo: Zoo, tmp_path: Path, events: list[str], changes: dict[str, Any], what: str
) -> None:
    registry.add_base("base", zoo.base)
    events.clear()
    settings = ExpertTraining(**(AMOUNT | changes))
    registry.train_expert("new", "base", [zoo.train["law"]], settings, out=tmp_path / "out")
    checkpoint = Checkpoint(zoo.base, remote_code=True)
    parameters = Trainable(load_model(zoo.base, "float32", "cpu"), checkpoint, settings).parameters
    weights = sum(part.numel() for part in parameters)
    assert trained_weights(checkpoint, settings) == weights
    told = f"training {what}: {weights:,} weights, 3 steps, 192 tokens, on cpu"
    assert events[:2] == ["writing", told]  # the base model is written from the registry's arrays first


@pytest.mark.parametrize("family", ["phi3", "gemma", "qwen2"])
def test_of_an_expert_of_another_family(tmp_path: Path, family: str) -> None:
    folder = save_checkpoint(make_model(family, 1), tmp_path / family, train_tokenizer())
    checkpoint = Checkpoint(folder, remote_code=True)
    for changes in ({}, {"trunk": "free"}, {"mlp": "lora:3"}):
        settings = ExpertTraining(**(AMOUNT | changes))
        parameters = Trainable(load_model(folder, "float32", "cpu"), checkpoint, settings).parameters
        assert trained_weights(checkpoint, settings) == sum(part.numel() for part in parameters)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("family", ["llama", "granite", "qwen2", "gpt_neox"])
def test_of_a_mixture(registry: Registry, zoo: Zoo, tmp_path: Path, events: list[str], family: str) -> None:
    is_remote = family == "gpt_neox"
    for number, name in enumerate(("code", "law"), start=1):
        folder = save_checkpoint(make_model(family, 900 + number), tmp_path / name, train_tokenizer())
        registry.add_expert(name, folder, data=[zoo.train[name]], remote_code=is_remote)
    host = "remote-code" if is_remote else None
    registry.compose(["code", "law"], tmp_path / "moe", Recipe(router="ridge", trunk="mean", top_k=2, host=host))
    model = load_model(tmp_path / "moe", "float32", "cpu")
    data = [str(zoo.train["law"])]
    for what, named in (("mlps", "the experts' MLPs and the routers"), ("all", "all weights")):
        events.clear()
        registry.train(tmp_path / "moe", tmp_path / what, data, MixtureTraining(what, **AMOUNT))
        let_train(model, what)
        weights = sum(part.numel() for part in model.parameters() if part.requires_grad)
        told = f"training {named}: {weights:,} weights, 3 steps, 192 tokens, on cpu"
        assert events[1] == told, events[:3]  # the check of the folder is first
    events.clear()
    settings = TrainSettings(steps=1, batch_size=2, seq_len=32, device="cpu")
    registry.train_router(tmp_path / "moe", tmp_path / "routers", data, settings)
    weights = sum(gate.weight.numel() for gate in gates(model))
    assert events[1] == f"training routers alone: {weights:,} weights, 1 step, 64 tokens, on cpu"
