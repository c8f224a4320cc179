"""The model card of a composition: what it is made of and how to use it. No time, place or registry history."""

from registry.composing.plan import Plan

_PAGE = """\
---
{metadata}
---

# {title}

A sparse mixture of {count} experts ({host}), composed in closed form, without training, by expert-registry.

| index | expert | content digest | license | weight |
|---|---|---|---|---|
{members}

| | |
|---|---|
| trunk | {trunk} |
| router | {router}, lam {lam:g}, top-{top_k}, temperature {temperature:g} |
| parameters | {parameters:,}, of which {active:,} are active per token |
| dtype | {dtype} |
| composition | `{digest}` |
{notes}
`composition.json` holds the recipe, the members' digests and the SHA-256 of every other file.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("path/to/this/folder"{trust})
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder"{trust})
```

The routers are the closed-form ridge solution of "Training-Free Dynamic Upcycling of Expert Language Models" (DUME),
equations 6 and 7.
"""


def model_card(plan: Plan) -> bytes:
    """Return README.md of a composed folder: metadata the Hub reads, and a page a person reads."""
    from huggingface_hub import ModelCardData

    licenses = {member.content["license"] for member in plan.members}
    metadata = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["expert-registry", "merge", "mixture-of-experts", "moe", plan.host.model_type],
        license=licenses.pop() if len(licenses) == 1 else None,
    )
    recipe = plan.recipe.document(plan.names)
    weights = recipe.pop("weights")
    base = f", base model {plan.base.version.name} `{plan.base.version.digest}`" if plan.base else ""
    members = [
        f"| {index} | {member.version.name} | `{member.version.digest}` | {member.content['license'] or 'not given'} "
        f"| {weights[member.version.name]:g} |"
        for index, member in enumerate(plan.members)
    ]
    page = _PAGE.format(
        **recipe
        | {
            "metadata": metadata.to_yaml(line_break="\n"),
            "title": " + ".join(plan.names),
            "count": len(plan.members),
            "host": plan.host.model_type,
            "members": "\n".join(members),
            "trunk": recipe["trunk"] + base,
            "parameters": plan.parameters,
            "active": plan.active_parameters,
            "dtype": plan.dtype,
            "digest": plan.digest,
            "notes": "".join(f"| note | {note} |\n" for note in plan.translation.notes),
            "trust": ", trust_remote_code=True" if plan.host.files else "",
        }
    )
    return page.encode()
