"""Sparse mixtures: what `--to moe` makes, and what they have in common with dense models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from statistics import median_low
from typing import TYPE_CHECKING, Any

from registry.composition.found import ROUTERS, TRUNKS
from registry.composition.method import BASE, OWN, Card, Router, Settings, Trunk, Work, written
from registry.composition.option import Limits, Option, OptionKind, Problem
from registry.composition.plan import EXPERTS, Output, Plan, PlanWarning, RoutingCost, Source
from registry.composition.recipe.fields import LEAST_COPIES, MOST_COPIES
from registry.composition.recipe.recipe import Recipe
from registry.composition.recipe.shared_options import (
    BALANCE,
    DTYPE,
    ROUTER,
    TEMPERATURE,
    TOP_K,
    TRUNK,
    TRUNK_OPTIONS,
    WEIGHTS,
)
from registry.io.display import counted
from registry.methods import moe
from registry.methods.moe.options import LAM, PAPER, SOFTMAX_TOPK, SOLVES_AGAIN
from registry.methods.works import DUME, SOUP_OF_EXPERTS, UPCYCLING
from registry.statistics.settings import PassSettings

if TYPE_CHECKING:
    from registry.composition.preview import Preview
    from registry.member import Member
    from registry.progress import Progress
    from registry.workspace import Workspace


USUAL_TOP_K = 2
"""Experts per token by default, but for routers that read evidence of the text, which take one.

*Measured* with RegMean's trunk and columns as they are solved, at temperature 0.05: of five experts near the base model
88.6 (one per token 88.5; unit columns, one per token, 88.6), with two far ones beside them 77.0 (76.4; 76.0).
"""


def retakes(recipe: Recipe) -> bool:
    """Tell whether the routers' statistics are collected again, from kept calibration tokens."""
    router = recipe.router_method
    return router is not None and (router.statistics == BASE or (router.statistics == OWN and recipe.refine > 0))


def top_k(recipe: Recipe, count: int) -> int:
    """Return how many of so many experts a token goes to."""
    router = recipe.router_method
    usual = USUAL_TOP_K if router is None or router.is_linear else 1
    return min(usual, count) if recipe.top_k is None else int(recipe.top_k)


def pass_document(recipe: Recipe, settings: PassSettings) -> dict[str, Any]:
    """Return the settings of passes that their numbers depend on."""
    from registry.runtime.loading import device_name

    return {"batch_size": settings.batch_size, "device": device_name(recipe.device).partition(":")[0]}


def trunk_document(recipe: Recipe, names: Sequence[str]) -> dict[str, Any]:
    """Return the trunk method and its options as documents hold them."""
    trunk = trunk_of(recipe)
    by_member = [one for one in trunk.options if one.kind is OptionKind.BY_MEMBER and getattr(recipe, one.name)]
    others = [one for one in trunk.options if one.kind not in (OptionKind.NUMBER, OptionKind.BY_MEMBER)]
    return {
        "trunk": recipe.trunk,
        TRUNK_OPTIONS: recipe.method_options,
        **{one.name: one.written(getattr(recipe, one.name), names) for one in by_member},
        **({"fit": asdict(recipe.fit)} if recipe.fit else {}),
        **written(others, recipe, names),
    }


def routed_document(recipe: Recipe, names: Sequence[str]) -> dict[str, Any]:
    """Return the router method and what goes with it as documents hold them."""
    return {
        "router": recipe.router,
        **router_of(recipe).document(recipe, names),
        "top_k": top_k(recipe, len(names)),
        "temperature": float(recipe.temperature),
        "token_weight": "none",  # digests are made of it, and of `refine_mlp`
        "refine": recipe.refine,
        "refine_mlp": False,
        **({"computed": pass_document(recipe, PassSettings())} if retakes(recipe) else {}),
    }


def trunk_of(recipe: Recipe) -> Trunk:
    """Return the trunk method of a mixture or a dense model."""
    method = recipe.trunk_method
    assert method is not None, "mixtures and dense models have a trunk"
    return method


def router_of(recipe: Recipe) -> Router:
    """Return the router method of a mixture."""
    method = recipe.router_method
    assert method is not None, "mixtures have routers"
    return method


class Combined(Output):
    """A mixture or a dense model."""

    is_combined = True
    is_fitted = True

    def needs_base(self, values: Settings) -> bool:
        trunk, router = TRUNKS.get(values.get("trunk") or ""), ROUTERS.get(values.get("router") or "")
        return (trunk is not None and trunk.needs_base) or (router is not None and router.statistics == BASE)

    def label(self, recipe: Recipe) -> str:
        return f"trunk method {recipe.trunk!r}"

    def document(self, recipe: Recipe, names: Sequence[str]) -> dict[str, Any]:
        return {
            "to": self.name,
            **trunk_document(recipe, names),
            **(routed_document(recipe, names) if recipe.router else {}),
            "weights": WEIGHTS.written(recipe.weights, names),
            "balance": recipe.balance,
            "dtype": recipe.dtype,
        }

    def plan(self, members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
        return moe.make_plan(members, base, recipe)

    def opened(self, plan: Plan, workspace: Workspace) -> AbstractContextManager[Source]:
        return moe.opened(plan, workspace)

    def config(self, plan: Plan) -> dict[str, Any]:
        return moe.host_config(plan)

    def code(self, plan: Plan) -> Mapping[str, bytes]:
        return dict(plan.parts.host.files)

    def card(self, plan: Plan) -> Card:
        return moe.mixture_card(plan, self.works_of(plan))

    def notes(self, plan: Plan) -> Iterable[str]:
        return moe.notes(plan)

    def active_parameters(self, plan: Plan) -> int:
        experts = sum(tensor.elements for tensor in plan.tensors if tensor.part == EXPERTS)
        count = len(plan.members)
        return plan.parameters - experts + experts // count * top_k(plan.recipe, count)

    def peak_bytes(self, plan: Plan) -> int:
        return moe.peak_bytes(plan)

    def works_of(self, plan: Plan) -> list[Work]:
        """Return the works to cite, those of the output first."""
        trunk = plan.recipe.trunk_method
        return [*(trunk.works if trunk else ()), *([SOUP_OF_EXPERTS] if plan.recipe.coefficients else [])]


def per_token(recipe: Mapping[str, Any]) -> str:
    """Return the experts per token of a recipe's document, for the end of a sentence."""
    return f"; {counted(recipe['top_k'], 'expert')} per token" if recipe.get("top_k") else ""


OF_COPIES = {"router": "random", "trunk": "base"}
"""Methods of a mixture whose experts are copies of one base model."""


class Moe(Combined):
    """A mixture of the members' MLPs on one trunk, with a router in every layer (DUME; BTX)."""

    name = "moe"
    options = (
        TRUNK,
        ROUTER,
        Option(
            "refine", OptionKind.WHOLE,
            "Passes of the kept calibration tokens through the composed model, from which the routers are solved.", "N",
            default=0, limits=Limits(0.0, 8.0), label="Refining passes", advanced=True,
            note="how often kept calibration tokens pass the composed model, to solve its routers on them",
        ),
        Option(
            "device", OptionKind.TEXT, "A torch device for passes.", "DEVICE", unset="the GPU if there is one",
            advanced=True,
        ),
        replace(TOP_K, unset="1 with context, else 2"),
        TEMPERATURE,
        WEIGHTS,
        BALANCE,
        DTYPE,
        Option(
            "host", OptionKind.TEXT, "Architecture of the folder, where several fit: a model type, or remote-code.",
            "HOST", unset="the preferred one", advanced=True,
        ),
        Option(
            "remote_code", OptionKind.SWITCH,
            "Write a modelling file into the folder, which carries any family; it loads with trust_remote_code=True.",
            "", default=False, stands_for=("host", "remote-code"), label="Modelling file", advanced=True,
            note="writes code that fits any model family; it loads with trust_remote_code",
        ),
    )  # fmt: skip
    words = "a sparse mixture"
    called = "sparse mixture"
    kind = "mixture"
    choice = "sparse mixture (moe)"
    clause = "a sparse mixture"
    note = "each token goes through a few experts"
    works = (DUME,)
    removed = {
        "lam": (LAM.default, "auto"),
        "token_weight": ("none", "advantage"),
        "refine_mlp": (False, True),
        "refine_trunk": (False, True),
    }
    copies = OF_COPIES
    compared = {}
    reference = {"router": SOLVES_AGAIN, **PAPER}
    is_previewed = True

    def problem_of_copies(self, count: int, values: Settings) -> Problem | None:
        if (router := values["router"]) != OF_COPIES["router"]:
            return Problem(
                ("router",),
                f"router method {router!r} cannot tell copies of one base model apart: they have the same weights, and "
                "no text of their own",
                f"choose --router {OF_COPIES['router']}, and train the mixture: reg train DIR --train all --data FILE",
            )
        if (trunk := values["trunk"]) != OF_COPIES["trunk"]:
            return Problem(
                ("trunk",),
                f"trunk method {trunk!r} has nothing to combine: copies of one base model have its trunk",
                f"choose --trunk {OF_COPIES['trunk']}",
            )
        if any(weight != 1 for weight in values.get("weights", {}).values()):
            return Problem(
                ("weights",), "copies of one base model are equal, so weights change nothing", "drop --weights"
            )
        if (balance := values.get("balance", "none")) != "none":
            return Problem(
                ("balance",),
                f"balance {balance!r} has nothing to balance: copies of one base model have no statistics",
                "drop --balance",
            )
        if isinstance(top_k := values.get("top_k"), int) and top_k > count:
            more = f", or --from-base {top_k}" if top_k <= MOST_COPIES else ""
            return Problem(
                ("top_k",),
                f"top-k is {top_k}, it must be from 1 to {count}, the number of copies",
                f"give --top-k {count}{' or less' if count > LEAST_COPIES else ''}{more}",
            )
        if values.get("gating") == SOFTMAX_TOPK:
            return Problem(
                ("gating",),
                f"gating {SOFTMAX_TOPK!r} gives weights that need not add up to 1, and copies of one base model would "
                "not give what it gives",
                "drop --gating",
            )
        if values.get("refine"):
            return Problem(
                ("refine",),
                "there is nothing to refine in copies of one base model, which have no calibration tokens",
                "drop --refine",
            )
        return None

    def top_k(self, recipe: Recipe, count: int) -> int:
        return top_k(recipe, count)

    def fields_of_document(self, document: Mapping[str, Any], host: str) -> dict[str, Any]:
        from registry.hosts.remote_code import REMOTE_CODE, ROUTED

        return {**document, "host": REMOTE_CODE if host.startswith(ROUTED) else host}

    def without_removed(self, composition: Mapping[str, Any], removed: Settings) -> dict[str, Any]:
        """Return a recipe without what was removed; where that chose λ by layer, with the median of the choices."""
        recipe = super().without_removed(composition, removed)
        recipe.pop("refine_trunk", None)  # documents have it only where it is true
        if not recipe.get("refine"):
            recipe.pop("computed", None)  # of the passes that it asked for
        chosen = [layer.get("best") for layer in composition.get("lam", ()) if isinstance(layer, dict)]
        strengths = [float(one) for one in chosen if one is not None and LAM.problem(one) is None]
        return recipe | ({"lam": median_low(strengths)} if "lam" in removed and strengths else {})

    def warnings(self, plan: Plan) -> tuple[PlanWarning, ...]:
        return moe.plan_warnings(plan)

    def preview(self, plan: Plan, progress: Progress) -> Preview:
        return moe.preview_plan(plan, progress)

    def shares_of(self, plan: Plan, version: Member) -> dict[str, float]:
        shares = moe.predict_text(plan, version.evidence_counts).tolist()
        return {name: min(max(share, 0.0), 1.0) for name, share in zip(plan.names, shares, strict=True)}

    def routing_cost(self, plan: Plan) -> RoutingCost | None:
        return moe.context_cost(plan)

    def passes(self, recipe: Recipe) -> Sequence[tuple[str, str, bool]]:
        collected = "collecting statistics of the experts’ kept text, where none are cached"
        return [("collecting", collected, False)] if retakes(recipe) else []

    def works_of(self, plan: Plan) -> list[Work]:
        router = plan.recipe.router_method
        copies = [UPCYCLING] if plan.from_base is not None else []
        return [*self.works, *copies, *(router.works if router else ()), *super().works_of(plan)]

    def separating(self, recipe: Settings, top_k: int | None, count: int) -> tuple[str, Sequence[str]] | None:
        if recipe.get("router") not in (ROUTERS.default.name, None):
            return "Route by the text so far.", ("--router", ROUTERS.default.name)
        if top_k == 1 and count > 2:
            return "Let two experts work on each token.", ("--top-k", "2")
        return None

    def sentences(self, document: Mapping[str, Any]) -> list[str]:
        recipe, copies = document["recipe"], document.get("from_base")
        of = f"{copies} copies of the base model’s MLPs" if copies else counted(len(document["members"]), "expert")
        trunk, router = TRUNKS.get(str(recipe.get("trunk"))), ROUTERS.get(str(recipe.get("router")))
        made = [f"A sparse mixture of {of}{per_token(recipe)}"]
        made += [f"shared weights {trunk.words}"] if trunk else []
        made += [router.words] if router else []
        made += (
            [f"routers solved again in {counted(recipe['refine'], 'pass', 'passes')}"] if recipe.get("refine") else []
        )
        return made
