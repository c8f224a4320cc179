"""Fixtures: experts of several architectures in one registry."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from registry import Registry
from tests.conftest import Shared, Zoo, copy_home
from tests.models import train_tokenizer
from tests.registry.methods.hetero.hetero_world import World, make_world


@pytest.fixture(scope="session")
def world(shared: Shared, zoo: Zoo) -> World:
    return shared.get("hetero", lambda root: make_world(root, zoo, train_tokenizer()))


@pytest.fixture
def several(world: World, tmp_path: Path) -> Iterator[Registry]:
    """A registry of its own with experts of several architectures, and no base model."""
    with Registry(copy_home(world.home, tmp_path / "home of several")) as opened:
        yield opened
