"""The model card of a mixture or a dense model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from registry.composition.method import Card, Work
from registry.composition.plan import Plan, RoutingCost
from registry.methods.moe.plan import context_cost

_OF_COPIES = 'The experts are copies of one dense model\'s MLPs, as in "Sparse Upcycling".'


def mixture_card(plan: Plan, works: Sequence[Work]) -> Card:
    """Return the card of a mixture or a dense model."""
    recipe, count, host = plan.recipe.document(plan.names), len(plan.members), plan.model_type
    is_sparse = plan.recipe.router_method is not None
    coefficients, fit = recipe.get("coefficients"), recipe.get("fit")
    factors = coefficients or recipe["weights"]
    base = f", base model {plan.base.version.name} `{plan.base.version.digest}`" if plan.base else ""
    cost = context_cost(plan)
    sparse = f"A sparse mixture of {count} experts ({host}),"
    dense = f"One dense model ({host}) made of {count} experts,"
    how = "in closed form, without training," if fit is None else "with one fitted number for each expert"
    parameters = f"{plan.parameters:,}, of which {plan.active_parameters:,} are active per token"
    return Card(
        tags=[*(["mixture-of-experts", "moe"] if is_sparse else []), host],
        title=f"{count} × {plan.lead.version.name}" if plan.from_base else "",
        intro=f"{sparse if is_sparse else dense} composed {how} by expert-registry.",
        columns={"coefficient" if coefficients else "weight": [f"{factors[name]:g}" for name in plan.names]},
        settings=[*_settings(recipe, base), *_context(cost), ("parameters", parameters)],
        limits=(*plan.notes, *_revealed(cost)),
        is_routed=is_sparse,
        sources=[*_sources(plan, recipe), *([_OF_COPIES] if plan.from_base else [])],
        works=works,
    )


def _sources(plan: Plan, recipe: Mapping[str, Any]) -> Iterator[str]:
    for method in (plan.recipe.router_method, plan.recipe.trunk_method):
        if method is not None and method.sentence:
            yield method.sentence
    if "coefficients" in recipe:
        yield 'Each expert\'s difference from the base model counts by a coefficient, as in "Soup-of-Experts".'
    if plan.recipe.router_method is None:
        yield 'All weights were combined alike, as in "Model soups".'
    elif recipe["refine"]:
        yield "The routers' statistics were taken anew through the composed model (DUME, equation 7)."


def _settings(recipe: Mapping[str, Any], base: str) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of the recipe's settings, apart from weights, coefficients and dtype."""
    for name, value in recipe.items():
        if name in ("to", "weights", "coefficients", "dtype", "trunk_options"):
            continue
        if name == "fit":
            losses = f"{value['after']:.4f}, with equal ones {value['before']:.4f}"
            text = f"{value['tokens']:,} tokens of text (digest `{value['data']}`) in {value['steps']} steps"
            yield "coefficients", f"fitted to {text}; loss on held-out windows {losses}"
            continue
        if name == "trunk":
            options = "".join(f", {option} {number:g}" for option, number in recipe["trunk_options"].items())
            yield name, f"{value}{options}{base}"
        else:
            yield name.replace("_", " "), f"{value:g}" if isinstance(value, float) else str(value)


def _context(cost: RoutingCost | None) -> Iterator[tuple[str, str]]:
    if cost is None:
        return
    over = f"the recent past (exp(−distance / {cost.window:g} tokens))" if cost.window else "the whole text so far"
    brings = "bring the shared head near the expert's own; from weights and counts of tokens"
    if cost.layers:
        last = cost.layers - cost.maps - 1
        which, them = (f"layers 0 to {last}", "them") if last else ("layer 0", "it")
        about = f"whose attention averages evidence over {over}; no member's weights are in {them}"
        yield "context layer", f"{which}, {about}"
        if cost.maps:
            yield "head maps", f"layer {cost.last}, whose experts {brings}"
        yield "reserved channels", f"the last {cost.channels} of the hidden size, which hold evidence and its mean"
    else:
        yield "context routing", f"the modelling file averages evidence over {over}"
        if cost.maps:
            yield "head maps", f"linear maps before the last norm, which {brings}"
    yield "context routing adds", f"{cost.parameters:,} parameters"


def _revealed(cost: RoutingCost | None) -> Iterator[str]:
    if cost is None:
        return
    where = "the embedding" if cost.layers else "the weights"
    yield f"Smoothed log ratios of how often each expert's calibration used each token are in {where}."
    yield "The first tokens of a text, and those after a change of its subject, may go to another expert."
