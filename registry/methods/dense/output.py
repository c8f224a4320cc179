"""Dense models: what `--to dense` makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.composition.found import TRUNKS
from registry.composition.method import Settings, Work
from registry.composition.option import Problem
from registry.composition.plan import Plan
from registry.composition.recipe.shared_options import BALANCE, DTYPE, TRUNK, WEIGHTS
from registry.io.display import counted
from registry.methods.moe.output import Combined
from registry.methods.works import BTX, DUME, MODEL_SOUPS, SOUP_OF_EXPERTS


class Dense(Combined):
    """One model in which the MLPs are combined as the trunk is (Wortsman et al. 2022)."""

    name = "dense"
    options = (TRUNK, WEIGHTS, BALANCE, DTYPE)
    words = "one dense model"
    called = "dense"
    kind = "dense model"
    noun = "merged model"
    choice = "one dense model"
    clause = "one model whose MLPs are combined as the trunk is"
    note = "all weights merged into one model"
    works = (DUME, MODEL_SOUPS)
    compared = {}  # trunk methods have them
    is_routed = False

    def unwanted(self, values: Settings) -> Problem | None:
        trunk = TRUNKS.get(values.get("trunk") or "")
        if trunk is None or trunk.needs_members:
            return None
        message = f"a dense model with the trunk of the {trunk.name} is the {trunk.name} model itself"
        return Problem(("trunk", "to"), message, "choose another trunk")

    def works_of(self, plan: Plan) -> list[Work]:
        differ = len({*plan.weights}) > 1  # as a soup for documents, or for the wanted share of each
        own = [*self.works, *([SOUP_OF_EXPERTS] if differ else [])]
        return [*own, *(one for one in super().works_of(plan) if one is not BTX)]  # whose average is of the trunk alone

    def sentences(self, document: Mapping[str, Any]) -> list[str]:
        trunk = document["recipe"].get("trunk")
        words = TRUNKS[trunk].words if trunk in TRUNKS else f"merged by {trunk}"
        return [f"One dense model of {counted(len(document['members']), 'expert')}", f"all weights {words}"]
