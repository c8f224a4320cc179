"""Fixtures: trained models that are healthy, dense and composed, and copies of them to be broken."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from registry import EnsembleRecipe, PassSettings, Recipe, Registry
from registry.composition import AnyRecipe
from tests.conftest import Shared, copy_home
from tests.trained_models import trained_experts

RECIPES: dict[str, AnyRecipe] = {
    "moe": Recipe(),
    "ridge": Recipe(router="ridge", trunk="mean", top_k=1),
    "ensemble": EnsembleRecipe(),
}
DOMAINS = ("code", "math")


@dataclass(frozen=True)
class Ward:
    """Healthy model folders by name (`dense` is an expert), their registry's home, and text of each domain."""

    folders: dict[str, Path]
    home: Path
    data: dict[str, list[Path]]


@pytest.fixture(scope="session")
def ward(shared: Shared) -> Ward:
    return shared.get("ward", _make_ward)


def _make_ward(root: Path) -> Ward:
    experts, texts = trained_experts(root, DOMAINS)
    settings = PassSettings(tokens=512, seq_len=32, batch_size=4)
    with Registry(root / "home") as registry:
        for name, folder in experts.items():
            registry.add_expert(name, folder, data=[texts[name]], settings=settings, keep_calibration=True)
        for name, recipe in RECIPES.items():
            registry.compose(list(experts), root / name, recipe)
    folders = {name: root / name for name in RECIPES} | {"dense": experts["code"]}
    return Ward(folders, root / "home", {name: [text] for name, text in texts.items()})


@pytest.fixture
def patient(ward: Ward, tmp_path: Path) -> dict[str, Path]:
    """Copies of the dense model and of two mixtures, which may be broken."""
    return {name: shutil.copytree(ward.folders[name], tmp_path / name) for name in ("dense", "moe", "ridge")}


@pytest.fixture
def ward_registry(ward: Ward, tmp_path: Path) -> Path:
    """The home of a registry of its own with the experts."""
    return copy_home(ward.home, tmp_path / "home")
