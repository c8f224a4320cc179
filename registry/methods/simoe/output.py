"""Experts of one `reg train-simoe` in one model: what `--to simoe` makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from registry.composition.method import Card, Settings
from registry.composition.plan import Output, Plan
from registry.composition.recipe.shared_options import DTYPE
from registry.io.display import counted
from registry.methods import simoe
from registry.methods.simoe.versions import KEY
from registry.methods.works import L0, SIMOE

if TYPE_CHECKING:
    from registry.composition.recipe.recipe import Recipe
    from registry.member import Member
    from registry.workspace import Workspace


class Simoe(Output):
    """Sparse interpolated experts as they were trained (Chen et al. 2025): nothing to choose but the dtype."""

    name = "simoe"
    options = (DTYPE,)
    words = "a SIMoE"
    called = "SIMoE"
    kind = "SIMoE"
    choice = "experts of a SIMoE"
    clause = "experts of reg train-simoe as they were trained"
    needs_code = True
    note = "experts that were trained together"
    works = (SIMOE, L0)
    has_domains = False
    one_layer = "A SIMoE"

    def needs_base(self, values: Settings) -> bool:
        return True

    def base_of(self, workspace: Workspace, members: Sequence[Member], base: str | None) -> str | None:
        return simoe.base_of(workspace, members).ref if base is None else base

    def plan(self, members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
        return simoe.make_simoe(members, base, recipe)

    def config(self, plan: Plan) -> dict[str, Any]:
        return simoe.config(plan)

    def code(self, plan: Plan) -> Mapping[str, bytes]:
        from registry.hosts.remote_code import modelling_file
        from registry.methods.simoe.host import MODELLING_FILE

        return modelling_file(MODELLING_FILE, plan.lead.family.class_name)

    def file_members(self, plan: Plan) -> Sequence[Member]:
        return (plan.lead,)

    def card(self, plan: Plan) -> Card:
        trained, base = plan.members[0].content[KEY], plan.lead
        kept, rows = sum(int(opened.sum()) for opened in plan.parts), sum(map(len, plan.parts))
        prompt = trained["prompt_tokens"]
        first = f"the mean embedding of the first {prompt} tokens"
        return Card(
            tags=["simoe", plan.model_type],
            intro=f"{len(plan.members)} sparse interpolated experts of one base model ({plan.model_type}), put "
            "together by expert-registry.",
            settings=[
                ("base model", f"{base.name} `{base.version.digest}`"),
                ("shared weights", f"`{trained['delta']}`, trained by {trained['experts']} experts together"),
                ("rows of D", f"{kept:,} of {rows:,}: those that a member's mask opens"),
                ("router", f"{first} gives each expert its weight, for the whole sequence"),
                ("parameters", f"{plan.parameters:,}, all of which run on every token"),
            ],
            notes="A linear layer of weight\nW gives W x + g ∘ (D x), where D is shared and g is the mean of the "
            f"members' masks by their weights. Before there are\n{prompt} tokens, all experts have equal weights. The "
            "mask and the router row of an expert that is no member are not\nhere, nor rows of D that it alone opens; "
            "what the others learned with it is.",
            works=plan.output.works,
        )

    def notes(self, plan: Plan) -> Sequence[str]:
        count = plan.members[0].content[KEY]["experts"]
        joint = f"its shared weights were trained by all {count} experts together, whichever of them are members"
        return (*super().notes(plan), joint)

    def mask_overlaps(self, members: Sequence[Member]) -> tuple[tuple[str, str, float], ...]:
        return simoe.mask_overlaps(members)

    def sentences(self, document: Mapping[str, Any]) -> list[str]:
        return [f"{counted(len(document['members']), 'expert')} of a SIMoE, as they were trained together"]
