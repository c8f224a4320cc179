"""What the model card of a SIMoE says: its members and its shared weights."""

from registry.composition.card import digest_cell, license_cell
from registry.composition.method import Card
from registry.composition.plan import Plan


def simoe_card(plan: Plan) -> Card:
    """Return the card of a SIMoE."""
    trained, base = plan.members[0].content["simoe"], plan.lead
    prompt = trained["prompt_tokens"]
    first = f"the mean embedding of the first {prompt} tokens"
    return Card(
        tags=["simoe", plan.model_type],
        title=" + ".join(plan.names),
        intro=f"{len(plan.members)} sparse interpolated experts of one base model ({plan.model_type}), put together by "
        "expert-registry.",
        columns=("index", "expert", "content digest", "license"),
        rows=[(str(i), one.name, digest_cell(one), license_cell(one)) for i, one in enumerate(plan.members)],
        settings=[
            ("base model", f"{base.name} `{base.version.digest}`"),
            ("shared weights", f"`{trained['delta']}`, trained by {trained['experts']} experts together"),
            ("router", f"{first} gives each expert its weight, for the whole sequence"),
            ("parameters", f"{plan.parameters:,}, all of which run on every token"),
        ],
        notes="A linear layer of weight\nW gives W x + g ∘ (D x), where D is shared and g is the mean of the members' "
        f"masks by their weights. Before there are\n{prompt} tokens, all experts have equal weights. The mask and the "
        "router row of an expert that is no member are not\nhere; what D learned with it is.",
        works=plan.output.works,
    )
