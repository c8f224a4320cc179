"""A continual-learning registry of expert language models.

    from registry import PassSettings, Recipe, Registry

    with Registry("home") as registry:
        registry.add_expert("math", "checkpoints/math")
        registry.add_expert("code", "checkpoints/code", data=["code.jsonl"], settings=PassSettings(tokens=8192))
        registry.compose(["code", "math"], "moe", Recipe(lam="auto"))
        registry.opt_out("math", purge=True)

Importing this package loads nothing that takes time; what is taken from it loads what it needs, and neither torch nor
transformers before a method needs them.
"""

import importlib
from typing import TYPE_CHECKING, Any

from registry.errors import RegError

if TYPE_CHECKING:
    from registry.composing import EnsembleRecipe, Plan, Recipe
    from registry.evaluation import TestSettings
    from registry.maths.statistics import Statistics
    from registry.pass_settings import PassSettings
    from registry.registry import Registry
    from registry.training.settings import TrainSettings

_LAZY = {
    "EnsembleRecipe": "registry.composing",
    "PassSettings": "registry.pass_settings",
    "Plan": "registry.composing",
    "Recipe": "registry.composing",
    "Registry": "registry.registry",
    "Statistics": "registry.maths.statistics",
    "TestSettings": "registry.evaluation",
    "TrainSettings": "registry.training.settings",
}

__all__ = [
    "EnsembleRecipe",
    "PassSettings",
    "Plan",
    "Recipe",
    "RegError",
    "Registry",
    "Statistics",
    "TestSettings",
    "TrainSettings",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
