"""Composing: from a subset and a recipe to a folder that plain transformers loads."""

from registry.composing.compose import write_composition
from registry.composing.ensemble import Ensemble, EnsembleRecipe, make_ensemble, write_ensemble
from registry.composing.member import Member
from registry.composing.plan import Plan, make_plan
from registry.composing.recipe import Recipe

__all__ = [
    "Ensemble",
    "EnsembleRecipe",
    "Member",
    "Plan",
    "Recipe",
    "make_ensemble",
    "make_plan",
    "write_composition",
    "write_ensemble",
]
