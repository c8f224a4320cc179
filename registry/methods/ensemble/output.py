"""Ensembles of whole experts: what `--to ensemble` makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from registry.composition.found import TRUNKS
from registry.composition.method import Card, Compared, Settings, Work
from registry.composition.option import Option, OptionKind, Problem
from registry.composition.plan import Output, Plan, Source
from registry.composition.recipe.recipe import Recipe
from registry.composition.recipe.shared_options import DTYPE, ROUTING_TOKENS, TEMPERATURE, TOP_K, TRUNK, WEIGHTS
from registry.io.display import counted
from registry.methods import ensemble, moe
from registry.methods.moe.output import trunk_document
from registry.methods.works import BTM, DUME, FLEXOLMO, MERGEME, SOUP_OF_EXPERTS

if TYPE_CHECKING:
    from registry.member import Member
    from registry.workspace import Workspace


POSTERIOR, PERPLEXITY, PROMPT_PERPLEXITY, TASK_VECTOR = "posterior", "perplexity", "prompt-perplexity", "task-vector"
LOGITS = "logits"
"""Mixing of logits, which has a modelling file of its own, as `PROMPT_PERPLEXITY` has."""


@dataclass(frozen=True)
class Routing:
    """A way to weight the members of an ensemble.

    Attributes:
        meaning: where the weights come from, for the model card.
        words: the same in lists and forms.
        needs_base: the base model is in the folder, whole.
        by_first_tokens: the first tokens decide for the rest, in which only chosen members run.
    """

    meaning: str
    words: str
    works: tuple[Work, ...]
    needs_base: bool = False
    by_first_tokens: bool = False


ROUTINGS = {
    POSTERIOR: Routing(
        "p(expert | text so far) by Bayes' rule (Branch-Train-Merge, section 2)",
        "weighted by how well each predicts the text so far",
        (BTM,),
    ),
    PERPLEXITY: Routing(
        "softmax of the negative perplexity on the text so far (after MergeME, section 3.1.3)",
        "weighted by perplexity",
        (MERGEME,),
    ),
    PROMPT_PERPLEXITY: Routing(
        "softmax of one over the perplexity on the first tokens (MergeME, section 3.1.3)",
        "weighted by perplexity on the prompt",
        (MERGEME,),
        by_first_tokens=True,
    ),
    TASK_VECTOR: Routing(
        "softmax of the cosine between the base model's negative gradient on the first tokens and the task vector "
        "(MergeME, appendix C)",
        "weighted by task vectors",
        (MERGEME,),
        needs_base=True,
        by_first_tokens=True,
    ),
}
"""Value of `--routing` → what it is."""


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
    """All members whole in one folder, their next-token distributions mixed (Li et al. 2022).

    Separate attention: MergeME, §3.1.3.

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

    def document(self, recipe: Recipe, names: Sequence[str]) -> dict[str, Any]:
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
        return ensemble.make_plan(members, base, recipe)

    def opened(self, plan: Plan, workspace: Workspace) -> AbstractContextManager[Source]:
        return ensemble.opened(plan, workspace)

    def config(self, plan: Plan) -> dict[str, Any]:
        return ensemble.config(plan)

    def code(self, plan: Plan) -> Mapping[str, bytes]:
        return ensemble.code(plan)

    def card(self, plan: Plan) -> Card:
        recipe, routing, base = plan.recipe.document(plan.names), routing_of(plan.recipe), plan.base
        weights, count, trunk = recipe["weights"], len(plan.members), plan.recipe.trunk_method
        cost, tokens = "every member runs on every token", recipe["routing_tokens"]
        evidence = "the weights at a token depend on the tokens before it alone"
        if tokens is not None:
            cost = f"every member runs on the first {tokens} tokens, then those chosen"
        if tokens == 0:
            cost = "every member runs on the prompt, then those chosen"
            evidence = (
                "the weights are those of the prompt, the tokens of the first call, for its own tokens\n"
                "too: for generation, not for perplexities"
            )
        if base is not None and routing.needs_base:
            cost += f"; once a sequence, a gradient of the base model {base.name} `{base.version.digest}`"
        members_are = "dense models that share one trunk" if trunk else "whole dense models"
        logits = recipe.get("mixing") == LOGITS
        return Card(
            tags=["ensemble", plan.model_type],
            intro=f"An ensemble of {count} {members_are} whose next-token distributions are mixed ({plan.model_type}), "
            "without training, by\nexpert-registry.",
            columns={"weight" if trunk else "prior weight": [f"{weights[name]:g}" for name in plan.names]}
            if weights
            else {},
            settings=[
                ("routing", f"{recipe['routing']}: {routing.meaning}"),
                ("kept", f"the {recipe['top_k']} largest weights, renormalised; temperature {recipe['temperature']:g}"),
                *([("mixing", "logits: the softmax of their weighted sum")] if logits else []),
                *([("trunk", _trunk(recipe, base))] if trunk else []),
                ("cost", cost),
                ("parameters", f"{plan.parameters:,} stored; a tensor that members share is stored once"),
            ],
            notes=f"The logits are log\nprobabilities of the mixture; {evidence}.",
            works=[
                DUME,
                *routing.works,
                *([FLEXOLMO] if logits else []),
                *(trunk.works if trunk else ()),
                *([SOUP_OF_EXPERTS] if plan.recipe.coefficients else []),
            ],
        )

    def notes(self, plan: Plan) -> Sequence[str]:
        from registry.composition.taken_files import taken_notes

        return (*super().notes(plan), *taken_notes(plan.members, plan.lead))

    def active_parameters(self, plan: Plan) -> int:
        if not routing_of(plan.recipe).by_first_tokens:
            return plan.parameters
        return min(plan.parameters, ensemble.active_parameters(plan))

    def peak_bytes(self, plan: Plan) -> int:
        trunk = plan.parts.trunk
        return plan.block_bytes if trunk is None else max(plan.block_bytes, moe.rendering_bytes(trunk))

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


def _trunk(recipe: Mapping[str, Any], base: Member | None) -> str:
    settings = [f"{name} {value:g}" for name, value in recipe["trunk_options"].items()]
    settings += [f"coefficient {value:g} of {name}" for name, value in recipe.get("coefficients", {}).items()]
    settings += ["the sum of task vectors"] if "combine" in recipe else []
    of_base = ""
    if base is not None and TRUNKS[recipe["trunk"]].needs_base:
        of_base = f", with the base model {base.name} `{base.version.digest}`"
    of_trunk = " (" + ", ".join(settings) + ")" if settings else ""
    return f"{recipe['trunk']}{of_trunk}{of_base}: one for all members, who keep their own MLPs"
