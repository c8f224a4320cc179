"""Fixtures: a base model and an adapter of it."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from registry.checkpoint import Checkpoint
from tests.models import make_model, save_checkpoint
from tests.registry.checkpoint.test_adapter import LINEAR, train


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> tuple[Path, Path]:
    """A llama base and a DoRA adapter of it, not to be changed."""
    root = tmp_path_factory.mktemp("made")
    base = save_checkpoint(make_model("llama", 100), root / "base", tokenizer)
    return base, train(base, root / "adapter", target_modules=LINEAR, use_dora=True)


@pytest.fixture
def base(made: tuple[Path, Path]) -> Checkpoint:
    return Checkpoint(made[0])


@pytest.fixture
def adapter(made: tuple[Path, Path], tmp_path: Path) -> Path:
    """A DoRA adapter that may be changed."""
    return shutil.copytree(made[1], tmp_path / "adapter")
