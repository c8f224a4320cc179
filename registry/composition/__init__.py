"""Compositions: plans, their folders, and what is made again of these."""

from importlib import import_module
from typing import Any

import lazy_loader

_own, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

_OF_METHODS = {
    "ContextCost": "moe.context.context_cost",
    "context_cost": "moe.context.context_cost",
    "PlanWarning": "moe.context.plan_warnings",
    "plan_warnings": "moe.context.plan_warnings",
    "Preview": "moe.preview",
    "Ensemble": "ensemble.plan",
    "EnsembleRecipe": "ensemble.recipe",
    "Hetero": "hetero.plan",
    "HeteroRecipe": "hetero.recipe",
    "SimoePlan": "simoe.plan",
    "SimoeRecipe": "simoe.recipe",
}
"""Name → module of `registry.methods`, of what is offered here too."""


def __getattr__(name: str) -> Any:
    if name in _OF_METHODS:
        return getattr(import_module(f"registry.methods.{_OF_METHODS[name]}"), name)
    return _own(name)
