"""The model card of a composition: what it is made of and how to use it. No time, place or registry history."""

from collections.abc import Iterator
from typing import Any

from registry.composing.plan import Plan

_PAGE = """\
---
{metadata}
---

# {title}

{what} composed in closed form, without training, by expert-registry.

| index | expert | content digest | license | weight |
|---|---|---|---|---|
{members}

| | |
|---|---|
{settings}
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

{sources}
"""

_SOURCES = {
    "ridge": 'The routers are the closed-form ridge solution of "Training-Free Dynamic Upcycling of Expert Language '
    'Models" (DUME), equations 6 and 7.',
    "domain-embedding": 'The routers are mean features of the experts\' text, as in "FlexOlmo", section 3.3.2.',
    "random": 'The routers are random, as in "Branch-Train-MiX" before training.',
    "regmean": 'The trunk is solved for by "Dataless Knowledge Fusion by Merging Weights of Language Models", RegMean.',
    "mean": 'The trunk is the average of the experts\', as in "Branch-Train-MiX".',
    "ties": 'The trunk is merged by "TIES-Merging: Resolving Interference When Merging Models".',
    "dare": 'The trunk is merged by "Language Models are Super Mario" (DARE).',
    "task-arithmetic": 'The trunk is merged by "Editing Models with Task Arithmetic".',
}


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
    weights = recipe["weights"]
    base = f", base model {plan.base.version.name} `{plan.base.version.digest}`" if plan.base else ""
    members = [
        f"| {index} | {member.version.name} | `{member.version.digest}` | {member.content['license'] or 'not given'} "
        f"| {weights[member.version.name]:g} |"
        for index, member in enumerate(plan.members)
    ]
    sparse = f"A sparse mixture of {len(plan.members)} experts ({plan.host.model_type}),"
    dense = f"One dense model ({plan.host.model_type}) made of {len(plan.members)} experts,"
    page = _PAGE.format(
        metadata=metadata.to_yaml(line_break="\n"),
        title=" + ".join(plan.names),
        what=sparse if recipe["to"] == "moe" else dense,
        members="\n".join(members),
        settings="\n".join(f"| {key} | {value} |" for key, value in _settings(recipe, base)),
        sources="\n".join(_SOURCES[name] for name in (recipe.get("router"), recipe["trunk"]) if name in _SOURCES),
        parameters=plan.parameters,
        active=plan.active_parameters,
        dtype=plan.dtype,
        digest=plan.digest,
        notes="".join(f"| note | {note} |\n" for note in plan.translation.notes),
        trust=", trust_remote_code=True" if plan.host.files else "",
    )
    return page.encode()


def _settings(recipe: dict[str, Any], base: str) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of what the recipe says, apart from weights and dtype."""
    for name, value in recipe.items():
        if name in ("to", "weights", "dtype", "trunk_options"):
            continue
        if name == "trunk":
            options = "".join(f", {option} {number:g}" for option, number in recipe["trunk_options"].items())
            yield name, f"{value}{options}{base}"
        else:
            yield name.replace("_", " "), f"{value:g}" if isinstance(value, float) else str(value)
