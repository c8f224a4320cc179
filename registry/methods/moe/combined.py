"""Outputs whose members are combined tensor by tensor, by a trunk method: sparse mixtures and dense models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from registry.composition.found import ROUTERS, TRUNKS
from registry.composition.method import BASE, Card, Output, Settings, counted
from registry.methods.works import SOUP_OF_EXPERTS

if TYPE_CHECKING:
    from registry.composition.method import Work
    from registry.composition.plan import Plan, Source
    from registry.composition.recipe.recipe import Recipe
    from registry.member import Member
    from registry.workspace import Workspace


class Combined(Output):
    """A mixture or a dense model."""

    is_combined = True
    is_fitted = True

    def needs_base(self, values: Settings) -> bool:
        trunk, router = TRUNKS.get(values.get("trunk") or ""), ROUTERS.get(values.get("router") or "")
        return (trunk is not None and trunk.needs_base) or (router is not None and router.statistics == BASE)

    def label(self, recipe: Recipe) -> str:
        return f"trunk method {recipe.trunk!r}"

    def plan(self, members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
        from registry.methods.moe.plan import make_plan

        return make_plan(members, base, recipe)

    def opened(self, plan: Plan, workspace: Workspace) -> AbstractContextManager[Source]:
        from registry.methods.moe.passes import opened

        return opened(plan, workspace)

    def config(self, plan: Plan) -> dict[str, Any]:
        from registry.methods.moe.model_writer import host_config

        return host_config(plan)

    def code(self, plan: Plan) -> Mapping[str, bytes]:
        return dict(plan.parts.host.files)

    def card(self, plan: Plan) -> Card:
        from registry.methods.moe.card import mixture_card

        return mixture_card(plan, self.works_of(plan))

    def notes(self, plan: Plan) -> Iterable[str]:
        from registry.methods.moe.plan import notes

        return notes(plan)

    def active_parameters(self, plan: Plan) -> int:
        from registry.methods.moe.plan import active_parameters

        return active_parameters(plan)

    def peak_bytes(self, plan: Plan) -> int:
        from registry.methods.moe.pass_memory import peak_bytes

        return peak_bytes(plan)

    def works_of(self, plan: Plan) -> list[Work]:
        """Return the works to cite, those of the output first."""
        trunk = plan.recipe.trunk_method
        return [*(trunk.works if trunk else ()), *([SOUP_OF_EXPERTS] if plan.recipe.coefficients else [])]


def per_token(recipe: Mapping[str, Any]) -> str:
    """Return the experts per token of a recipe's document, for the end of a sentence."""
    return f"; {counted(recipe['top_k'], 'expert')} per token" if recipe.get("top_k") else ""
