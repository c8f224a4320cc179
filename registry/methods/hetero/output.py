"""Members of different architectures in one model: what `--to hetero` makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from registry.composition.method import Card, Compared, Settings
from registry.composition.option import Option, OptionKind, Problem
from registry.composition.plan import Output, Plan, Source
from registry.composition.recipe.recipe import Recipe
from registry.composition.recipe.shared_options import DTYPE, ROUTING_TOKENS, TEMPERATURE, TOP_K
from registry.io.display import counted
from registry.methods import hetero
from registry.methods.moe.options import LAM
from registry.methods.moe.output import per_token
from registry.methods.works import DUME, MERGEME

if TYPE_CHECKING:
    from registry.member import Member
    from registry.workspace import Workspace

LEAD = Option(
    "lead", OptionKind.TEXT, "For hetero: the member whose embedding and head all share.", "NAME",
    unset="the member with the largest hidden size", label="Lead",
    note="the member whose embedding and head all share; by default the one with the largest hidden size",
    advanced=True,
)  # fmt: skip


_PROJECTORS = {(True, True): "in, out", (True, False): "in", (False, True): "out", (False, False): "none"}


class Hetero(Output):
    """Whole bodies between one embedding and one head, with a router of sequences (after MergeME, §3.2).

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

    def problem_of_members(self, recipe: Recipe, names: Sequence[str]) -> Problem | None:
        if problem := super().problem_of_members(recipe, names):
            return problem
        if len(set(names)) == 1:
            return Problem(
                ("experts",),
                f"{names[0]} is the only member, and there is nothing to share or to choose from",
                f"name more --experts, or write it as it is: reg export {names[0]} DIR",
            )
        if recipe.lead is not None and recipe.lead not in names:
            message = f"the lead {recipe.lead!r} is not a member"
            return Problem(("lead",), message, f"name one of them: --lead {', '.join(names)}")
        return None

    def document(self, recipe: Recipe, names: Sequence[str]) -> dict[str, Any]:
        return super().document(recipe, names) | {"top_k": 1 if recipe.top_k is None else recipe.top_k}

    def without(self, recipe: Recipe, names: Sequence[str]) -> Recipe:
        kept: Recipe = super().without(recipe, names)
        return kept if recipe.lead in names else kept.replace(lead=None)

    def plan(self, members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
        return hetero.make_hetero(members, recipe)

    def opened(self, plan: Plan, workspace: Workspace) -> AbstractContextManager[Source]:
        return hetero.opened(plan)

    def config(self, plan: Plan) -> dict[str, Any]:
        return hetero.config(plan)

    def code(self, plan: Plan) -> Mapping[str, bytes]:
        from registry.hosts.remote_code import modelling_file
        from registry.methods.hetero.host import MODELLING_FILE

        return modelling_file(MODELLING_FILE)

    def card(self, plan: Plan) -> Card:
        recipe = plan.recipe.document(plan.names)
        tokens = recipe["routing_tokens"]
        first = f"first {tokens} tokens" if tokens else "prompt"
        evidence = f"Until the {first} are read all members count alike, so no\ntoken is weighed by those after it."
        if not tokens:
            evidence = (
                "The weights are those of the prompt, the tokens of the first call, for its own\n"
                "tokens too: for generation, not for perplexities."
            )
        cost = f"every member runs on the {first}, then those chosen" if tokens else "the members chosen run"
        routing = f"by the mean of the shared embeddings of the {first} (after MergeME, section 3.2), in closed form"
        return Card(
            tags=["moe", plan.model_type],
            intro=f"{len(plan.members)} whole decoders, each of its own architecture and size, between one embedding "
            f"and one head ({plan.model_type}), without\ntraining, by expert-registry. A router reads the first tokens "
            "of a text and chooses the members that run.",
            first_columns={
                "architecture": [one.family.model_type for one in plan.members],
                "hidden size": [str(one.architecture.hidden_size) for one in plan.members],
                "projectors": [_PROJECTORS[pair] for pair in plan.parts.projected],
            },
            settings=[
                ("embedding and head", f"those of {plan.lead.name}"),
                ("routing", routing),
                ("kept", f"{recipe['top_k']} of a sequence; temperature {recipe['temperature']:g}"),
                ("ridge strength", f"{recipe['lam']:g}, relative"),
                ("cost", cost),
                ("parameters", f"{plan.parameters:,} stored"),
            ],
            notes=evidence,
            limits=["A head that is projected in front of another one is as near to it as least squares come."],
            works=plan.output.works,
        )

    def notes(self, plan: Plan) -> Iterator[str]:
        from registry.composition.taken_files import taken_notes

        yield from super().notes(plan)
        yield from taken_notes(plan.members, plan.lead)
        fitted = [name for name, (_, to_head) in zip(plan.names, plan.parts.projected, strict=True) if to_head]
        if fitted:
            yield f"the head of {plan.lead.name} stands in for that of {', '.join(fitted)}, by least squares"

    def active_parameters(self, plan: Plan) -> int:
        bodies = [
            sum(one.elements for one in plan.tensors if one.name.startswith((f"members.{index}.", f"outputs.{index}.")))
            for index in range(len(plan.members))
        ]  # those of the largest that are kept count, with the shared tables and the router
        return plan.parameters - sum(sorted(bodies, reverse=True)[plan.recipe.document(plan.names)["top_k"] :])

    def peak_bytes(self, plan: Plan) -> int:
        widest = max(tables.width for tables in plan.parts.tables)
        return plan.block_bytes + 4 * 8 * int(plan.parts.lead.width * widest)  # the matrices of one projector

    def sentences(self, document: Mapping[str, Any]) -> list[str]:
        of = f"{counted(len(document['members']), 'expert')} of several architectures"
        return [f"{of} between one embedding and one head{per_token(document['recipe'])}"]
