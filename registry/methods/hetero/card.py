"""What the model card of members of different architectures says: who leads, what is projected, the cost."""

from registry.composition.card import digest_cell, license_cell
from registry.composition.method import Card
from registry.composition.plan import Plan

_PROJECTORS = {(True, True): "in, out", (True, False): "in", (False, True): "out", (False, False): "none"}


def hetero_card(plan: Plan) -> Card:
    """Return the card of members of different architectures in one model."""
    recipe = plan.recipe.document(plan.names)
    tokens = recipe["routing_tokens"]
    first = f"first {tokens} tokens" if tokens else "prompt"
    evidence = f"Until the {first} are read all members count alike, so no\ntoken is weighed by those after it."
    if not tokens:
        evidence = (
            "The weights are those of the prompt, the tokens of the first call, for its own\n"
            "tokens too: for generation, not for perplexities."
        )
    routing = f"by the mean of the shared embeddings of the {first} (MergeME, section 3.2), in closed form"
    return Card(
        tags=["moe", plan.model_type],
        title=" + ".join(plan.names),
        intro=f"{len(plan.members)} whole decoders, each of its own architecture and size, between one embedding and "
        f"one head ({plan.model_type}), without\ntraining, by expert-registry. A router reads the first tokens of a "
        "text and chooses the members that run.",
        columns=("index", "expert", "architecture", "hidden size", "projectors", "content digest", "license"),
        rows=[
            (
                *(str(index), one.name, one.family.model_type, str(one.architecture.hidden_size), _PROJECTORS[pair]),
                *(digest_cell(one), license_cell(one)),
            )
            for index, (one, pair) in enumerate(zip(plan.members, plan.parts.projected, strict=True))
        ],
        settings=[
            ("embedding and head", f"those of {plan.lead.name}"),
            ("routing", routing),
            ("kept", f"{recipe['top_k']} of a sequence; temperature {recipe['temperature']:g}"),
            ("ridge strength", f"{recipe['lam']:g}, relative"),
            ("cost", f"every member runs on the {first}, then those chosen" if tokens else "the members chosen run"),
            ("parameters", f"{plan.parameters:,} stored"),
        ],
        notes=evidence,
        limits=["A head that is projected in front of another one is as near to it as least squares come."],
        works=plan.output.works,
    )
