"""Low-rank experts beside one another on their base model: what `--to adapters` makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from registry.composition.method import Card, Settings
from registry.composition.option import Limits, Option, OptionKind, Problem
from registry.composition.plan import TRUNK, Output, Plan
from registry.composition.recipe.shared_options import CONTEXT_WINDOW, DTYPE, KEPT, TOP_K
from registry.io.display import counted
from registry.methods import adapters
from registry.methods.works import DORA, LEWIS, LORA, MARON, SPARSEMAX

if TYPE_CHECKING:
    from registry.composition.recipe.recipe import Recipe
    from registry.member import Member
    from registry.workspace import Workspace


RANK = Option(
    "rank", OptionKind.WHOLE, "For experts that were trained in full: the rank of the change that is kept of a matrix.",
    "N", limits=Limits(1.0), noun="rank", unset=f"as many as keep {KEPT:.0%} of an expert's change",
    is_later=True, label="Rank", note="of experts that were trained in full; by default {default}", advanced=True,
)  # fmt: skip
MAX_BYTES = Option(
    "max_bytes", OptionKind.WHOLE, "For the same, in place of a rank: the bytes that all changes take.", "SIZE",
    limits=Limits(1.0), noun="max-bytes", unset="no limit", is_later=True, advanced=True,
)  # fmt: skip

SEVERAL = 2
"""Experts that a token may have where `top_k` is not given."""

NO_BASE_MEMBER = Option(
    "no_base_member", OptionKind.SWITCH,
    "Send no text to the base model alone, though it counted text of its own (`reg add-base --own-text`).", "",
    default=False, is_later=True, label="No base member", advanced=True,
    note="text that no expert knows goes to one of them all the same",
)  # fmt: skip

_NOBODY = {
    True: "goes to the base model alone, by counts of text that it wrote itself",
    False: "goes to one of the experts all the same",
}


class Adapters(Output):
    """Adapters as they were trained, each token with one or a few of them, chosen by the text so far.

    Options in recipes: a token whose text may be of several has up to `top_k` of them, by shares; with `no_base_member`
    no token goes to the base model alone.
    """

    name = "adapters"
    options = (
        RANK,
        MAX_BYTES,
        CONTEXT_WINDOW,
        replace(TOP_K, unset=str(SEVERAL)),
        NO_BASE_MEMBER,
        DTYPE,
    )
    words = "adapters side by side"
    called = "adapters"
    kind = "adapters"
    noun = "model of adapters"
    choice = "adapters on their base model"
    clause = "LoRA experts as they are, one or a few for each token"
    needs_code = True
    takes_any_family = True
    note = "LoRA experts as they are, on one base model"
    works = (LORA, DORA, MARON, LEWIS, SPARSEMAX)
    sentence = (
        "A token's expert is the one whose calibration text used the tokens of the text so far most, compared with the "
        "others': naive Bayes over tokens and pairs of them (Maron 1961; Lewis 1998). It is the same in all layers; "
        "nothing of it is trained."
    )
    has_oracle = True

    def needs_base(self, values: Settings) -> bool:
        return True

    def problem(self, values: Settings) -> Problem | None:
        if values.get("rank") is None or values.get("max_bytes") is None:
            return None
        return Problem(("max_bytes", "rank"), "rank and max_bytes both choose the ranks", "give one of them")

    def base_of(self, workspace: Workspace, members: Sequence[Member], base: str | None) -> str | None:
        found = adapters.base_of(workspace, members) if base is None else None
        return base if found is None else found.ref

    def top_k(self, recipe: Recipe, count: int) -> int:
        return min(SEVERAL, count) if recipe.top_k is None else recipe.top_k

    def document(self, recipe: Recipe, names: Sequence[str]) -> dict[str, Any]:
        return super().document(recipe, names) | {"top_k": self.top_k(recipe, len(names))}

    def plan(self, members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
        return adapters.make_adapters(members, base, recipe)

    def config(self, plan: Plan) -> dict[str, Any]:
        return adapters.config(plan)

    def code(self, plan: Plan) -> Mapping[str, bytes]:
        from registry.hosts.remote_code import modelling_file
        from registry.methods.adapters.host import MODELLING_FILE

        return modelling_file(MODELLING_FILE, plan.lead.family.class_name)

    def file_members(self, plan: Plan) -> Sequence[Member]:
        return (plan.lead,)

    def active_parameters(self, plan: Plan) -> int:
        dense = sum(tensor.elements for tensor in plan.tensors if tensor.part == TRUNK)
        largest = sorted(adapters.added_parameters(plan), reverse=True)
        return dense + sum(largest[: self.top_k(plan.recipe, len(plan.members))])

    def peak_bytes(self, plan: Plan) -> int:
        return super().peak_bytes(plan) + adapters.truncation_bytes(plan)

    def card(self, plan: Plan) -> Card:
        base, recipe = plan.lead, plan.recipe.document(plan.names)
        window, truncated = recipe["context_window"], any(plan.parts.ranks.by_member)
        most = self.top_k(plan.recipe, len(plan.members))
        several = ("text that may be of several", f"goes to up to {most} adapters, by shares (sparsemax)")
        kept = (
            "as near to an expert that was trained in full as the ranks below allow"
            if truncated
            else "as it was trained"
        )
        return Card(
            tags=["lora", plan.model_type],
            intro=f"{counted(len(plan.members), 'adapter')} of one base model ({plan.model_type}), put together by "
            "expert-registry.",
            settings=[
                ("base model", f"{base.name} `{base.version.digest}`, unchanged"),
                ("text that no expert knows", _NOBODY[len(adapters.everyone(plan)) > len(plan.members)]),
                ("expert of a token", f"by the last {window:g} tokens or so" if window else "by the whole text so far"),
                *([several] if most > 1 else []),
                ("parameters", f"{plan.parameters:,}, of which {plan.active_parameters:,} are active per token"),
            ],
            notes="A linear layer of weight W gives W x + s B A x for the expert of a token: the base model with that "
            f"adapter, {kept}, whatever other\nadapters are here.",
            limits=plan.notes,
            sources=[self.sentence],
            works=tuple(one for one in self.works if one is not SPARSEMAX or most > 1),
        )

    def notes(self, plan: Plan) -> Iterable[str]:
        yield from super().notes(plan)
        yield from adapters.ranks_note(plan)
        yield from adapters.few_tokens_note(plan)
        if plan.parts.pairs is None:
            yield adapters.pairs_note(plan)
        if not plan.recipe.no_base_member and len(adapters.everyone(plan)) == len(plan.members):
            yield (
                "text that no expert knows goes to one of them all the same: let the base model write text, and count "
                f"it: reg add-base {plan.lead.name} CKPT --own-text 24576"
            )

    def separating(self, recipe: Settings, top_k: int | None, count: int) -> tuple[str, Sequence[str]] | None:
        if int(recipe.get("top_k", 1)) > 1 or count < 2:
            return None
        return "Let a token whose text may be of both have both.", ("--top-k", "2")

    def sentences(self, document: Mapping[str, Any]) -> list[str]:
        most = document["recipe"].get("top_k", 1)
        own = "one" if most == 1 else f"up to {most}"
        return [f"{counted(len(document['members']), 'adapter')} on their base model, {own} for each token"]
