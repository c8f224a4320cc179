"""Ensembles of whole experts: what `--to ensemble` makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from registry.composition.found import TRUNKS
from registry.composition.method import Card, Compared, Output, Settings, counted
from registry.composition.recipe.option import Option, OptionKind, Problem
from registry.composition.recipe.shared_options import (
    DTYPE,
    ROUTING_TOKENS,
    TEMPERATURE,
    TOP_K,
    TRUNK,
    WEIGHTS,
)
from registry.errors import InvalidInputError
from registry.methods.ensemble.routings import (
    LOGITS,
    PERPLEXITY,
    POSTERIOR,
    PROMPT_PERPLEXITY,
    ROUTINGS,
    TASK_VECTOR,
    Routing,
)
from registry.methods.works import DUME

if TYPE_CHECKING:
    from registry.composition.plan import Plan, Source
    from registry.composition.recipe.recipe import Recipe
    from registry.member import Member
    from registry.workspace import Workspace

ROUTING = Option(
    "routing", OptionKind.CHOICE, "For an ensemble: {choices}.", "METHOD", default=POSTERIOR, choices=(*ROUTINGS,),
    noun="routing method", label="Routing", note="how an ensemble weighs its members",
)  # fmt: skip

MIXING = Option(
    "mixing", OptionKind.CHOICE,
    "For an ensemble: probabilities, or logits, whose weighted sum goes through the softmax.", "HOW",
    default="probabilities", choices=("probabilities", LOGITS), label="Mixing",
    note="whether an ensemble adds up its members’ probabilities or logits", advanced=True, is_later=True,
)  # fmt: skip


class Ensemble(Output):
    """All members whole in one folder, their next-token distributions mixed (Li et al. 2022; MergeME, §3.1.3).

    Attributes of recipes: `top_k` members are kept per token, their weights renormalised. `temperature` divides log
    likelihoods (`posterior`), perplexities, their inverses (`prompt-perplexity`) or cosines before the softmax. With a
    `trunk` the members share one, made by that method, and keep their MLPs. `weights` take part in the sums of the
    trunk method, and with `posterior` the prior is the share of ω.
    """

    name = "ensemble"
    options = (
        ROUTING,
        replace(ROUTING_TOKENS, only_with={"routing": (PROMPT_PERPLEXITY, TASK_VECTOR)}),
        MIXING,
        replace(TRUNK, default=None, unset="each member's own"),
        replace(TOP_K, unset="all members"),
        replace(TEMPERATURE, default=1.0),
        replace(WEIGHTS, only_with={"routing": (POSTERIOR,)}, or_with=("trunk",)),
        DTYPE,
    )
    words = "an ensemble"
    called = "ensemble"
    kind = "ensemble"
    one_layer = "An ensemble"
    choice = "ensemble of whole models"
    clause = "all members whole, their predictions mixed"
    needs_code = True
    note = "all members run, and their predictions are mixed"
    works = (DUME,)
    compared = {
        "btm": Compared(),
        "btm-top-1": Compared({"top_k": 1}),
        "perplexity": Compared({"routing": PERPLEXITY, "top_k": 1}),
        "prompt-perplexity": Compared({"routing": PROMPT_PERPLEXITY, "top_k": 1}),
        "task-vector": Compared({"routing": TASK_VECTOR, "top_k": 1}),
        "prompt-perplexity-merged": Compared({"routing": PROMPT_PERPLEXITY, "top_k": 1, "trunk": "mean"}),
        "task-vector-merged": Compared({"routing": TASK_VECTOR, "top_k": 1, "trunk": "mean"}),
    }

    def problem(self, values: Settings) -> Problem | None:
        tokens, routing = values["routing_tokens"], values["routing"]
        if tokens >= 2 or (tokens == 0 and routing == PROMPT_PERPLEXITY):
            return None
        more = f"as nothing predicts the first token; with routing method {PROMPT_PERPLEXITY!r} also 0, for the whole"
        return Problem(
            ("routing_tokens",),
            f"routing-tokens is {tokens}, it must be 2 or more, {more} prompt",
            f"the default is {ROUTING_TOKENS.default_text}",
        )

    def needs_base(self, values: Settings) -> bool:
        routing, trunk = ROUTINGS.get(values.get("routing") or ""), TRUNKS.get(values.get("trunk") or "")
        return (routing is not None and routing.needs_base) or (trunk is not None and trunk.needs_base)

    def takes_base(self, members: Sequence[Member], recipe: Recipe) -> bool:
        from registry.composition.compatibility import differ_in_shape

        return recipe.needs_base and not differ_in_shape(members)

    def label(self, recipe: Recipe) -> str:
        return f"routing {recipe.routing!r}" + (f" with trunk method {recipe.trunk!r}" if recipe.trunk else "")

    def check_members(self, recipe: Recipe, names: Sequence[str]) -> None:
        if recipe.top_k is not None and not 1 <= recipe.top_k <= len(names):
            raise InvalidInputError(
                f"top-k is {recipe.top_k}, it must be from 1 to {len(names)}, the number of members",
                f"give --top-k {len(names)} or less, or name more --experts",
            )

    def document(self, recipe: Recipe, names: Sequence[str]) -> dict[str, Any]:
        from registry.methods.moe.recipe import trunk_document

        merged = trunk_document(recipe, names) if recipe.trunk else {}
        has_weights = recipe.routing == POSTERIOR or merged
        return {
            "to": self.name,
            "routing": recipe.routing,
            "top_k": len(names) if recipe.top_k is None else recipe.top_k,
            "temperature": float(recipe.temperature),
            "weights": WEIGHTS.written(recipe.weights, names) if has_weights else None,
            "routing_tokens": recipe.routing_tokens if routing_of(recipe).by_first_tokens else None,
            "dtype": recipe.dtype,
            **({"mixing": recipe.mixing} if recipe.mixing != MIXING.default else {}),
            **merged,
        }

    def plan(self, members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
        from registry.composition.compatibility import differ_in_shape
        from registry.methods.ensemble.plan import make_ensemble
        from registry.methods.ensemble.several_families import make_families

        return make_families(members, recipe) if differ_in_shape(members) else make_ensemble(members, base, recipe)

    def opened(self, plan: Plan, workspace: Workspace) -> AbstractContextManager[Source]:
        from registry.methods.ensemble.plan import opened

        return opened(plan, workspace)

    def config(self, plan: Plan) -> dict[str, Any]:
        config: dict[str, Any] = plan.parts.config(plan)
        return config

    def code(self, plan: Plan) -> Mapping[str, bytes]:
        code: Mapping[str, bytes] = plan.parts.code(plan)
        return code

    def card(self, plan: Plan) -> Card:
        from registry.methods.ensemble.card import ensemble_card

        return ensemble_card(plan)

    def notes(self, plan: Plan) -> Sequence[str]:
        from registry.composition.taken_files import taken_notes

        code = "load it with trust_remote_code=True: the folder carries its modelling file"
        return (code, *taken_notes(plan.members, plan.lead))

    def active_parameters(self, plan: Plan) -> int:
        if not routing_of(plan.recipe).by_first_tokens:
            return plan.parameters
        active: int = plan.parts.active_parameters(plan)
        return min(plan.parameters, active)

    def peak_bytes(self, plan: Plan) -> int:
        from registry.methods.moe.pass_memory import rendering_bytes

        trunk = plan.parts.trunk
        return plan.block_bytes if trunk is None else max(plan.block_bytes, rendering_bytes(trunk))

    def separating(self, recipe: Settings, top_k: int | None, count: int) -> tuple[str, Sequence[str]] | None:
        if recipe.get("routing") == POSTERIOR:
            return None
        return "Weigh members by the text so far.", ("--routing", POSTERIOR)

    def sentences(self, document: Mapping[str, Any]) -> list[str]:
        recipe = document["recipe"]
        routing, trunk = str(recipe.get("routing")), recipe.get("trunk")
        words = ROUTINGS[routing].words if routing in ROUTINGS else routing
        shared = TRUNKS[trunk].words if trunk in TRUNKS else trunk
        made = [f"An ensemble of {counted(len(document['members']), 'whole model')}", words]
        return [*made, *([f"shared weights {shared}"] if trunk else [])]


def routing_of(recipe: Recipe) -> Routing:
    """Return the routing method of a recipe."""
    return ROUTINGS[recipe.routing]


def mixes(recipe: Recipe) -> bool:
    """Tell whether the folder needs the modelling file of `prompt-perplexity` and of mixed logits."""
    return bool(recipe.routing == PROMPT_PERPLEXITY or recipe.mixing == LOGITS)
