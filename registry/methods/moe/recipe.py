"""The recipe of a mixture: what its options come to."""

from collections.abc import Sequence
from typing import Any

from registry.composition.method import BASE, OWN, Router, Trunk, written
from registry.composition.recipe.option import OptionKind
from registry.composition.recipe.recipe import Recipe
from registry.composition.recipe.shared_options import TRUNK_OPTIONS
from registry.runtime.loading import device_name
from registry.statistics.settings import PassSettings

USUAL_TOP_K = 2
"""Experts per token by default, but for routers that read evidence of the text, which take one.

*Measured* with RegMean's trunk and columns as they are solved, at temperature 0.05: of five experts near the base model
88.6 (one per token 88.5; unit columns, one per token, 88.6), with two far ones beside them 77.0 (76.4; 76.0).
"""


def retakes(recipe: Recipe) -> bool:
    """Tell whether the routers' statistics are collected again, from kept calibration tokens."""
    router = recipe.router_method
    return router is not None and (router.statistics == BASE or (router.statistics == OWN and recipe.refine > 0))


def top_k(recipe: Recipe, count: int) -> int:
    """Return how many of so many experts a token goes to."""
    router = recipe.router_method
    usual = USUAL_TOP_K if router is None or router.is_linear else 1
    return min(usual, count) if recipe.top_k is None else int(recipe.top_k)


def pass_document(recipe: Recipe, settings: PassSettings) -> dict[str, Any]:
    """Return the settings of passes that their numbers depend on."""
    return {"batch_size": settings.batch_size, "device": device_name(recipe.device).partition(":")[0]}


def trunk_document(recipe: Recipe, names: Sequence[str]) -> dict[str, Any]:
    """Return the trunk method and its options as documents hold them."""
    trunk = trunk_of(recipe)
    by_member = [one for one in trunk.options if one.kind is OptionKind.BY_MEMBER and getattr(recipe, one.name)]
    others = [one for one in trunk.options if one.kind not in (OptionKind.NUMBER, OptionKind.BY_MEMBER)]
    return {
        "trunk": recipe.trunk,
        TRUNK_OPTIONS: recipe.method_options,
        **{one.name: one.written(getattr(recipe, one.name), names) for one in by_member},
        **({"fit": recipe.fit.document()} if recipe.fit else {}),
        **written(others, recipe, names),
    }


def routed_document(recipe: Recipe, names: Sequence[str]) -> dict[str, Any]:
    """Return the router method and what goes with it as documents hold them."""
    passes = retakes(recipe) or recipe.refine_mlp
    return {
        "router": recipe.router,
        **router_of(recipe).document(recipe, names),
        "top_k": top_k(recipe, len(names)),
        "temperature": float(recipe.temperature),
        "token_weight": "none",  # digests are made of it
        "refine": recipe.refine,
        "refine_mlp": recipe.refine_mlp,
        **({"computed": pass_document(recipe, PassSettings())} if passes else {}),
    }


def trunk_of(recipe: Recipe) -> Trunk:
    """Return the trunk method of a mixture or a dense model."""
    method = recipe.trunk_method
    assert method is not None, "mixtures and dense models have a trunk"
    return method


def router_of(recipe: Recipe) -> Router:
    """Return the router method of a mixture."""
    method = recipe.router_method
    assert method is not None, "mixtures have routers"
    return method
