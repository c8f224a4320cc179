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
| kept | the {top_k} largest weights, renormalised; temperature {temperature:g} |
| cost | {cost} |
| parameters | {parameters:,} stored; a tensor that members share is stored once |
| dtype | {dtype} |
| composition | `{digest}` |

`composition.json` holds the recipe, the members' digests and the SHA-256 of every other file. The logits are log
probabilities of the mixture; the weights at a token depend on the tokens before it alone.

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
    """
    recipe = document["recipe"]
    weights = recipe["weights"]
    rows = [
        f"| {index} | {member.name} | `{member.version.digest}` | {member.content['license'] or 'not given'} |"
        + (f" {weights[member.name]:g} |" if weights else "")
        for index, member in enumerate(members)
    ]
    cost = "every member runs on every token"
    if base is not None:
        cost = (
            f"every member runs on the first {recipe['routing_tokens']} tokens, then those chosen; once a sequence, "
            f"a gradient of the base model {base.name} `{base.version.digest}`"
        )
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
        cost=cost,
        parameters=parameters,
        dtype=dtype,
        digest=document["digest"],
        license=license_note(rolled),
        use=use(trust=True, architecture="EnsembleForCausalLM"),
        reproduce=reproduce(members, base),
        limits=limits(()),
        citation=citation(recipe),
    )
    return page.encode()
