"""What the model card of an ensemble says."""

from collections.abc import Mapping
from typing import Any

from registry.composition.card import digest_cell, license_cell
from registry.composition.found import TRUNKS
from registry.composition.method import Card
from registry.composition.plan import Plan
from registry.member import Member
from registry.methods.ensemble.output import LOGITS, routing_of
from registry.methods.works import DUME, FLEXOLMO, SOUP_OF_EXPERTS


def ensemble_card(plan: Plan) -> Card:
    """Return the card of an ensemble."""
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
    prior = ["weight" if trunk else "prior weight"] if weights else []
    logits = recipe.get("mixing") == LOGITS
    return Card(
        tags=["ensemble", plan.model_type],
        title=" + ".join(plan.names),
        intro=f"An ensemble of {count} {members_are} whose next-token distributions are mixed ({plan.model_type}), "
        "without training, by\nexpert-registry.",
        columns=("index", "expert", "content digest", "license", *prior),
        rows=[
            (
                *(str(index), one.name, digest_cell(one), license_cell(one)),
                *([f"{weights[one.name]:g}"] if weights else []),
            )
            for index, one in enumerate(plan.members)
        ],
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


def _trunk(recipe: Mapping[str, Any], base: Member | None) -> str:
    """Return what is said of the trunk that the members share."""
    settings = [f"{name} {value:g}" for name, value in recipe["trunk_options"].items()]
    settings += [f"coefficient {value:g} of {name}" for name, value in recipe.get("coefficients", {}).items()]
    settings += ["the sum of task vectors"] if "combine" in recipe else []
    of_base = ""
    if base is not None and TRUNKS[recipe["trunk"]].needs_base:
        of_base = f", with the base model {base.name} `{base.version.digest}`"
    of_trunk = " (" + ", ".join(settings) + ")" if settings else ""
    return f"{recipe['trunk']}{of_trunk}{of_base}: one for all members, who keep their own MLPs"
