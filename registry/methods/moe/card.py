"""Model card of a mixture or a dense model: its members, its recipe and its use; no time, path or registry history."""

from collections.abc import Iterator
from typing import Any

from registry.composition.cards.parts import citation, license_note, licenses_of, limits, metadata, reproduce, use
from registry.composition.plan import Plan
from registry.composition.recipe.recipe_fields import FROM_ROWS
from registry.methods.moe.context.context_cost import ContextCost, context_cost

_PAGE = """\
---
{metadata}
---

# {title}

{what} composed {how} by expert-registry.

| index | expert | content digest | license | {factor} |
|---|---|---|---|---|
{members}

| | |
|---|---|
{settings}
| parameters | {parameters:,}, of which {active:,} are active per token |
| dtype | {dtype} |
| composition | `{digest}` |

`composition.json` holds the recipe, the members' digests and the SHA-256 of every other file.

{license}
{use}
{reproduce}
{limits}
## Methods

{sources}

{citation}"""

_SOURCES = {
    "ridge": 'The routers are the closed-form ridge solution of "Training-Free Dynamic Upcycling of Expert Language '
    'Models" (DUME), equations 6 and 7.',
    "domain-embedding": 'The routers are mean features of the experts\' text, as in "FlexOlmo", section 3.3.2.',
    "context": "The router of every layer takes the expert whose calibration text used the tokens of the text so far "
    "most, compared with the others': naive Bayes over unigrams (Maron 1961; Lewis 1998). Each token's evidence is in "
    "the weights and is averaged over the text so far, by one layer of attention with rotary positions (RoFormer) or "
    "by the modelling file; nothing of it is trained.",
    "anchored": "The routers are the rows that each expert was trained with beside the frozen public expert, as in "
    '"FlexOlmo", section 3.3.1.',
    "random": 'The routers are random, as in "Branch-Train-MiX" before training.',
    "regmean": 'The trunk is solved for by "Dataless Knowledge Fusion by Merging Weights of Language Models", RegMean.',
    "mean": 'The trunk is the average of the experts\', as in "Branch-Train-MiX".',
    "ties": 'The trunk is merged by "TIES-Merging: Resolving Interference When Merging Models".',
    "dare": 'The trunk is merged by "Language Models are Super Mario" (DARE).',
    "task-arithmetic": 'The trunk is merged by "Editing Models with Task Arithmetic".',
}

_OF_COEFFICIENTS = 'Each expert\'s difference from the base model counts by a coefficient, as in "Soup-of-Experts".'
_OF_COPIES = 'The experts are copies of one dense model\'s MLPs, as in "Sparse Upcycling".'


def model_card(plan: Plan) -> bytes:
    """Return README.md of a composed folder: metadata for the Hub, and a page for people."""
    rolled = licenses_of(plan.members, plan.base)
    recipe = plan.recipe.document(plan.names)
    coefficients, fit = recipe.get("coefficients"), recipe.get("fit")
    factors = coefficients or recipe["weights"]
    base = f", base model {plan.base.version.name} `{plan.base.version.digest}`" if plan.base else ""
    cost = context_cost(plan)
    members = [
        f"| {index} | {member.name} | `{member.version.digest}` | {member.content['license'] or 'not given'} "
        f"| {factors[member.name]:g} |"
        for index, member in enumerate(plan.members)
    ]
    tags = [*(["mixture-of-experts", "moe"] if recipe["to"] == "moe" else []), plan.host.model_type]
    sparse = f"A sparse mixture of {len(plan.members)} experts ({plan.host.model_type}),"
    dense = f"One dense model ({plan.host.model_type}) made of {len(plan.members)} experts,"
    page = _PAGE.format(
        metadata=metadata(rolled.license, tags),
        title=" + ".join(plan.names) if plan.from_base is None else f"{plan.from_base} × {plan.lead.version.name}",
        how="in closed form, without training," if fit is None else "with one fitted number for each expert",
        factor="coefficient" if coefficients else "weight",
        what=sparse if recipe["to"] == "moe" else dense,
        members="\n".join(members),
        settings="\n".join(f"| {key} | {value} |" for key, value in (*_settings(recipe, base), *_context(cost))),
        sources="\n".join((*_sources(recipe), *([_OF_COPIES] if plan.from_base else []))),
        parameters=plan.parameters,
        active=plan.active_parameters,
        dtype=plan.dtype,
        digest=plan.digest,
        license=license_note(rolled),
        use=use(trust=bool(plan.host.files), architecture=plan.host.class_name),
        reproduce=reproduce(plan.members, plan.base, anchored=recipe.get("router") in FROM_ROWS),
        limits=limits((*plan.notes, *_revealed(cost)), routed=recipe["to"] == "moe"),
        citation=citation(recipe, of_copies=plan.from_base is not None),
    )
    return page.encode()


def _sources(recipe: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence on each method that the recipe used."""
    for name in (recipe.get("router"), recipe["trunk"]):
        if name in _SOURCES:
            yield _SOURCES[name]
    if "coefficients" in recipe:
        yield _OF_COEFFICIENTS
    if recipe["to"] == "dense":
        yield 'All weights were combined alike, as in "Model soups".'
    elif recipe["refine"]:
        yield "The routers' statistics were taken anew through the composed model (DUME, equation 7)."
    if recipe.get("refine_mlp"):
        yield "The trunk's linear maps and the experts' down projections were refitted in closed form to the whole."


def _settings(recipe: dict[str, Any], base: str) -> Iterator[tuple[str, str]]:
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


def _context(cost: ContextCost | None) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of the context layer."""
    if cost is None:
        return
    over = f"the recent past (exp(−distance / {cost.window:g} tokens))" if cost.window else "the whole text so far"
    brings = "bring the shared head near the expert's own; from weights and counts of tokens"
    if cost.layers:
        yield "context layer", f"layer 0, whose attention averages evidence over {over}; no member's weights are in it"
        if cost.maps:
            yield "head maps", f"layer {cost.last}, whose experts {brings}"
        yield "reserved channels", f"the last {cost.channels} of the hidden size, which hold evidence and its mean"
    else:
        yield "context routing", f"the modelling file averages evidence over {over}"
        if cost.maps:
            yield "head maps", f"linear maps before the last norm, which {brings}"
    yield "context routing adds", f"{cost.parameters:,} parameters"


def _revealed(cost: ContextCost | None) -> Iterator[str]:
    """Yield what context routing reveals, and what it cannot."""
    if cost is None:
        return
    where = "the embedding" if cost.layers else "the weights"
    yield f"Smoothed log ratios of how often each expert's calibration used each token are in {where}."
    yield "The first tokens of a text, and those after a change of its subject, may go to another expert."
