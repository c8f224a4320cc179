"""A soup of three domains and two experts, trained once for all tests of a run."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry import Registry, SoupTraining
from registry.calibration import Corpus
from registry.runtime.loading import load_tokenizer
from tests.conftest import Shared, Zoo, copy_home

DOMAINS = ("code", "german", "math")
SETTINGS = SoupTraining(
    experts=2, support=1, tokens=60 * 8 * 32, batch_size=8, seq_len=32, lr=0.01, device="cpu", dtype="float32"
)


def settings_with(**changes: Any) -> SoupTraining:
    """Return the settings of six steps of two windows, with changes."""
    return replace(SETTINGS, **({"support": 2, "tokens": 6 * 2 * 32, "batch_size": 2} | changes))


def text_of(zoo: Zoo) -> dict[str, list[Path]]:
    """Return the training text of the domains."""
    return {name: [zoo.train[name]] for name in DOMAINS}


def corpora_of(zoo: Zoo) -> dict[str, Corpus]:
    """Return the training documents of the domains."""
    return {name: Corpus(files, load_tokenizer(zoo.base)) for name, files in text_of(zoo).items()}


@pytest.fixture(scope="session")
def _soup_home(zoo: Zoo, shared: Shared) -> Path:
    def make(root: Path) -> Path:
        with Registry(root / "home") as registry:
            registry.add_base("base", zoo.base)
            registry.train_soup("soup", "base", text_of(zoo), SETTINGS, license="mit")
        return root / "home"

    return shared.get("soup", make)


@pytest.fixture
def soup(_soup_home: Path, tmp_path: Path) -> Iterator[Registry]:
    """A registry of its own with a base model and a trained soup."""
    with Registry(copy_home(_soup_home, tmp_path / "soup-home")) as opened:
        yield opened
