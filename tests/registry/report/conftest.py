"""Fixtures: a composition of two experts, and the figures of its report before anything is evaluated."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from registry import Registry
from registry.report import ReportData
from tests.catalogs import in_files
from tests.conftest import Zoo, opened_copy


@pytest.fixture(scope="session")
def _world(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("report")
    with in_files(), Registry(place / "home") as registry:
        registry.add_base("base", zoo.base)
        for name in ("code", "german"):
            registry.add_expert(name, zoo.experts[name], license="apache-2.0" if name == "code" else None)
        registry.compose(["code", "german"], place / "moe")
    return place


@pytest.fixture
def world(_world: Path, tmp_path: Path) -> Iterator[tuple[Registry, Path]]:
    """A registry of its own with a base model and two experts, and the folder of their composition."""
    with opened_copy(_world / "home", tmp_path / "world") as registry:
        yield registry, _world / "moe"


@pytest.fixture(scope="session")
def predicted(_world: Path, tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    with opened_copy(_world / "home", tmp_path_factory.mktemp("predicted") / "home") as registry:
        return registry.report(_world / "moe")
