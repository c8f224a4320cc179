"""Composing: from a subset and a recipe to a folder that plain transformers loads."""

from registry.composing.member import Member
from registry.composing.plan import Plan, make_plan
from registry.composing.recipe import Recipe

__all__ = ["Member", "Plan", "Recipe", "make_plan"]
