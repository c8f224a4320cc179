"""Members of different architectures in one model: what `--to hetero` makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from registry.composition.method import Card, Compared, Output, Settings, counted
from registry.composition.recipe.option import Option, OptionKind, Problem
from registry.composition.recipe.shared_options import DTYPE, ROUTING_TOKENS, TEMPERATURE, TOP_K
from registry.errors import InvalidInputError
from registry.methods.moe.combined import per_token
from registry.methods.moe.options import LAM
from registry.methods.works import DUME, MERGEME

if TYPE_CHECKING:
    from registry.composition.plan import Plan, Source
    from registry.composition.recipe.recipe import Recipe
    from registry.member import Member
    from registry.workspace import Workspace

LEAD = Option(
    "lead", OptionKind.TEXT, "For hetero: the member whose embedding and head all share.", "NAME",
    unset="the member with the largest hidden size", label="Lead",
    note="the member whose embedding and head all share; by default the one with the largest hidden size",
    advanced=True,
)  # fmt: skip


class Hetero(Output):
    """Whole bodies between one embedding and one head, with a router of sequences (MergeME, §3.2).

    Options in recipes: `top_k` members are kept for a sequence. `temperature` divides the router's scores, which lie
    about 1 for a text of the member and 0 for others. `routing_tokens` says how many first tokens decide; 0 stands for
    the tokens of the model's first call, which is the prompt in generation. `lam` is the strength λ of input
    projectors and router, relative to the mean of the diagonal of their Grams.
    """

    name = "hetero"
    options = (ROUTING_TOKENS, LEAD, LAM, replace(TOP_K, unset="1"), TEMPERATURE, DTYPE)
    words = "one model of several architectures"
    called = "hetero"
    kind = "mixed architectures"
    noun = "mixture"
    choice = "several architectures (hetero)"
    clause = "members of several architectures behind one embedding and before one head"
    needs_code = True
    note = "members of several architectures share one embedding and head"
    works = (DUME, MERGEME)
    compared = {"hetero": Compared({"top_k": 1})}
    has_projectors = True
    one_layer = "An ensemble"

    def problem(self, values: Settings) -> Problem | None:
        if (tokens := values["routing_tokens"]) != 1:
            return None
        return Problem(
            ("routing_tokens",),
            f"routing-tokens is {tokens}, it must be 2 or more, or 0 for the whole prompt",
            f"the default is {ROUTING_TOKENS.default_text}",
        )

    def check_members(self, recipe: Recipe, names: Sequence[str]) -> None:
        if recipe.top_k is not None and not 1 <= recipe.top_k <= len(names):
            raise InvalidInputError(
                f"top-k is {recipe.top_k}, it must be from 1 to {len(names)}, the number of members",
                f"give --top-k {len(names)} or less, or name more --experts",
            )
        if len(set(names)) == 1:
            raise InvalidInputError(
                f"{names[0]} is the only member, and there is nothing to share or to choose from",
                f"name more --experts, or write it as it is: reg export {names[0]} DIR",
            )
        if recipe.lead is not None and recipe.lead not in names:
            raise InvalidInputError(
                f"the lead {recipe.lead!r} is not a member", f"name one of them: --lead {', '.join(names)}"
            )

    def document(self, recipe: Recipe, names: Sequence[str]) -> dict[str, Any]:
        return super().document(recipe, names) | {"top_k": 1 if recipe.top_k is None else recipe.top_k}

    def without(self, recipe: Recipe, names: Sequence[str]) -> Recipe:
        kept = super().without(recipe, names)
        return kept if recipe.lead in names else kept.replace(lead=None)

    def plan(self, members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
        from registry.methods.hetero.plan import make_hetero

        return make_hetero(members, recipe)

    def opened(self, plan: Plan, workspace: Workspace) -> AbstractContextManager[Source]:
        from registry.methods.hetero.plan import opened

        return opened(plan)

    def config(self, plan: Plan) -> dict[str, Any]:
        from registry.methods.hetero.plan import config

        return config(plan)

    def code(self, plan: Plan) -> Mapping[str, bytes]:
        from registry.hosts.remote_code import hetero_code

        return hetero_code()

    def card(self, plan: Plan) -> Card:
        from registry.methods.hetero.card import hetero_card

        return hetero_card(plan)

    def notes(self, plan: Plan) -> Iterable[str]:
        from registry.methods.hetero.plan import notes

        return notes(plan)

    def active_parameters(self, plan: Plan) -> int:
        from registry.methods.hetero.plan import active_parameters

        return active_parameters(plan)

    def peak_bytes(self, plan: Plan) -> int:
        from registry.methods.hetero.plan import peak_bytes

        return peak_bytes(plan)

    def sentences(self, document: Mapping[str, Any]) -> list[str]:
        of = f"{counted(len(document['members']), 'expert')} of several architectures"
        return [f"{of} between one embedding and one head{per_token(document['recipe'])}"]
