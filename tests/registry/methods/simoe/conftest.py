"""A SIMoE of three experts, trained once for all tests of a run."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry import Registry, SimoeTraining
from tests.conftest import Shared, Zoo, copy_home

NAMES = ["mix-1", "mix-2", "mix-3"]
SETTINGS = SimoeTraining(
    experts=3,
    sparsity=0.6,
    prompt_tokens=8,
    gate_lr=0.3,
    dual_lr=0.2,
    tokens=60 * 4 * 32,
    batch_size=4,
    seq_len=32,
    lr=3e-3,
    device="cpu",
    dtype="float32",
)


def settings_with(**changes: Any) -> SimoeTraining:
    """Return the settings of six steps of two windows, with changes."""
    return replace(SETTINGS, **({"tokens": 6 * 2 * 32, "batch_size": 2, "experts": 2} | changes))


def text_of(zoo: Zoo) -> list[Path]:
    """Return the training text."""
    return [zoo.train[name] for name in ("code", "german", "math")]


@pytest.fixture(scope="session")
def _simoe_home(zoo: Zoo, shared: Shared) -> Path:
    def make(root: Path) -> Path:
        with Registry(root / "home") as registry:
            registry.add_base("base", zoo.base, license="mit")
            registry.train_simoe("mix", "base", text_of(zoo), SETTINGS, license="mit")
        return root / "home"

    return shared.get("simoe", make)


@pytest.fixture
def simoe(_simoe_home: Path, tmp_path: Path) -> Iterator[Registry]:
    """A registry of its own with a base model and the experts of a SIMoE."""
    with Registry(copy_home(_simoe_home, tmp_path / "simoe-home")) as opened:
        yield opened
