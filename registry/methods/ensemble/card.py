"""Model card of an ensemble: its members, its cost and its use."""

from collections.abc import Mapping, Sequence
from typing import Any

from registry.composition.cards.licenses import RollUp
from registry.composition.cards.parts import citation, license_note, limits, metadata, reproduce, use
from registry.composition.recipe.recipe_fields import NEEDS_BASE
from registry.member import Member

_PAGE = """\
---
{metadata}
---

# {title}

An ensemble of {count} {members_are} whose next-token distributions are mixed ({host}), without training, by
expert-registry.

| index | expert | content digest | license |{prior_head}
|---|---|---|---|{prior_rule}
{members}

| | |
|---|---|
| routing | {routing}: {meaning} |
| kept | the {top_k} largest weights, renormalised; temperature {temperature:g} |{mixing}{trunk}
| cost | {cost} |
| parameters | {parameters:,} stored; a tensor that members share is stored once |
| dtype | {dtype} |
| composition | `{digest}` |

`composition.json` holds the recipe, the members' digests and the SHA-256 of every other file. The logits are log
probabilities of the mixture; {evidence}.

{license}
{use}
{reproduce}
{limits}
{citation}"""


def ensemble_card(
    document: Mapping[str, Any],
    members: Sequence[Member],
    *,
    base: Member | None,
    rolled: RollUp,
    routing: str,
    parameters: int,
    dtype: str,
    architecture: str,
) -> bytes:
    """Return README.md of an ensemble's folder: metadata for the Hub, and a page for people.

    Args:
        document: the ensemble's document with its digest.
        members: the members, in order.
        base: the base model, if it takes part.
        rolled: the roll-up of all licenses.
        routing: a description of the routing method.
        parameters: the number of stored weights.
        dtype: the dtype of the weights.
        architecture: the class in the modelling file.
    """
    recipe = document["recipe"]
    weights = recipe["weights"]
    rows = [
        f"| {index} | {member.name} | `{member.version.digest}` | {member.content['license'] or 'not given'} |"
        + (f" {weights[member.name]:g} |" if weights else "")
        for index, member in enumerate(members)
    ]
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
    if base is not None and recipe["routing"] in NEEDS_BASE["routing"]:
        cost += f"; once a sequence, a gradient of the base model {base.name} `{base.version.digest}`"
    page = _PAGE.format(
        metadata=metadata(rolled.license, ["ensemble", document["host"]]),
        title=" + ".join(member.name for member in members),
        count=len(members),
        members_are="dense models that share one trunk" if "trunk" in recipe else "whole dense models",
        host=document["host"],
        prior_head=(" weight |" if "trunk" in recipe else " prior weight |") if weights else "",
        prior_rule="---|" if weights else "",
        members="\n".join(rows),
        routing=recipe["routing"],
        meaning=routing,
        top_k=recipe["top_k"],
        temperature=recipe["temperature"],
        mixing="\n| mixing | logits: the softmax of their weighted sum |" if "mixing" in recipe else "",
        trunk=f"\n| trunk | {_trunk(recipe, base)} |" if "trunk" in recipe else "",
        evidence=evidence,
        cost=cost,
        parameters=parameters,
        dtype=dtype,
        digest=document["digest"],
        license=license_note(rolled),
        use=use(trust=True, architecture=architecture),
        reproduce=reproduce(members, base),
        limits=limits(()),
        citation=citation(recipe),
    )
    return page.encode()


def _trunk(recipe: Mapping[str, Any], base: Member | None) -> str:
    """Return what is said of the trunk that the members share."""
    settings = [f"{name} {value:g}" for name, value in recipe["trunk_options"].items()]
    settings += [f"coefficient {value:g} of {name}" for name, value in recipe.get("coefficients", {}).items()]
    settings += ["the sum of task vectors"] if "combine" in recipe else []
    of_base = ""
    if base is not None and recipe["trunk"] in NEEDS_BASE["trunk"]:
        of_base = f", with the base model {base.name} `{base.version.digest}`"
    of_trunk = " (" + ", ".join(settings) + ")" if settings else ""
    return f"{recipe['trunk']}{of_trunk}{of_base}: one for all members, who keep their own MLPs"
