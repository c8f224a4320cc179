"""Model card of an ensemble: its members, its cost and its use."""

from collections.abc import Mapping, Sequence
from typing import Any

from registry.composition.cards.licenses import RollUp
from registry.composition.cards.parts import citation, license_note, limits, metadata, reproduce, use
from registry.member import Member

_PAGE = """\
---
{metadata}
---

# {title}

An ensemble of {count} whole dense models whose next-token distributions are mixed ({host}), without training, by
expert-registry.

| index | expert | content digest | license |{prior_head}
|---|---|---|---|{prior_rule}
{members}

| | |
|---|---|
| routing | {routing}: {meaning} |
| kept | the {top_k} largest weights, renormalised; temperature {temperature:g} |{mixing}
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
        base: the base model, if the routing needs it.
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
    if base is not None:
        cost += f"; once a sequence, a gradient of the base model {base.name} `{base.version.digest}`"
    page = _PAGE.format(
        metadata=metadata(rolled.license, ["ensemble", document["host"]]),
        title=" + ".join(member.name for member in members),
        count=len(members),
        host=document["host"],
        prior_head=" prior weight |" if weights else "",
        prior_rule="---|" if weights else "",
        members="\n".join(rows),
        routing=recipe["routing"],
        meaning=routing,
        top_k=recipe["top_k"],
        temperature=recipe["temperature"],
        mixing="\n| mixing | logits: the softmax of their weighted sum |" if "mixing" in recipe else "",
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
