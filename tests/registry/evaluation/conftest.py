"""Fixtures: a composition of two experts, the test text of both, and what is said to the user."""

from pathlib import Path

import pytest

from registry import Registry, TestSettings
from tests.conftest import Zoo
from tests.remarks import Remarks

SETTINGS = TestSettings(windows=2, seq_len=32, batch_size=3)
PAIR = ["code", "math"]

Data = dict[str, list[Path]]
"""Domain → files of text."""


@pytest.fixture
def data(zoo: Zoo) -> Data:
    return {name: [zoo.test[name]] for name in PAIR}


@pytest.fixture
def moe(filled: Registry, tmp_path: Path) -> Path:
    """A composition of `PAIR`, whose name is that of its folder."""
    filled.compose(PAIR, tmp_path / "moe")
    return tmp_path / "moe"


@pytest.fixture
def remarks(filled: Registry) -> Remarks:
    """What the registry remarks on from now on."""
    filled.progress = said = Remarks()
    return said
