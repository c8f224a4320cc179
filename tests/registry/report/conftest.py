"""Fixtures: a composition of two experts and the figures of its report, made once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from registry import Registry
from registry.report import ReportData
from tests.conftest import Zoo


@pytest.fixture(scope="session")
def world(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Registry, Path]]:
    """A registry with a base model, two experts and their composition."""
    place = tmp_path_factory.mktemp("report")
    with Registry(place / "home") as registry:
        registry.add_base("base", zoo.base)
        for name in ("code", "german"):
            registry.add_expert(name, zoo.experts[name], license="apache-2.0" if name == "code" else None)
        registry.compose(["code", "german"], place / "moe")
        yield registry, place / "moe"


@pytest.fixture(scope="session")
def foretold(world: tuple[Registry, Path]) -> ReportData:
    registry, moe = world
    return registry.report(moe)
