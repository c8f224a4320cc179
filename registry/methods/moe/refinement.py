"""Refinements of a mixture: which a recipe asks for, and why some routers have none."""

from registry.composition.method import Settings
from registry.composition.recipe.option import Problem

SOLVES_AGAIN = "ridge"
"""The router that passes through the composed model solve again."""

PAPER: Settings = {"top_k": 1, "normalize": True}
"""Routers as in the DUME paper."""


def refined(values: Settings) -> str | None:
    """Return the first refinement that a recipe asks for, or None."""
    return next((name for name in ("refine", "refine_mlp") if values.get(name)), None)


def without_refinement(name: str, router: str, why: str) -> Problem:
    """Return the problem of a refinement that a router method does not take."""
    option = f"--{name.replace('_', '-')}"
    return Problem(
        (name, "router"), f"router method {router!r} {why}", f"drop {option}, or choose --router {SOLVES_AGAIN}"
    )
