"""Model card of members of different architectures in one model: who leads, what is projected, cost and use."""

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

{count} whole decoders, each of its own architecture and size, between one embedding and one head ({host}), without
training, by expert-registry. A router reads the first tokens of a text and chooses the members that run.

| index | expert | architecture | hidden size | projectors | content digest | license |
|---|---|---|---|---|---|---|
{members}

| | |
|---|---|
| embedding and head | those of {lead} |
| routing | {routing} |
| kept | {top_k} of a sequence; temperature {temperature:g} |
| ridge strength | {lam:g}, relative |
| cost | {cost} |
| parameters | {parameters:,} stored |
| dtype | {dtype} |
| composition | `{digest}` |

`composition.json` holds the recipe, the members' digests and the SHA-256 of every other file. {evidence}

{license}
{use}
{reproduce}
{limits}
{citation}"""


def hetero_card(
    document: Mapping[str, Any],
    members: Sequence[Member],
    *,
    lead: Member,
    projected: tuple[Sequence[bool], Sequence[bool]],
    rolled: RollUp,
    parameters: int,
    dtype: str,
) -> bytes:
    """Return README.md of the folder: metadata for the Hub, and a page for people.

    Args:
        document: the composition's document with its digest.
        members: the members, in order.
        lead: the one whose embedding and head all share.
        projected: of each member, whether it has a projector from the embedding, and one to the head.
        rolled: the roll-up of all licenses.
        parameters: the number of stored weights.
        dtype: the dtype of the weights.
    """
    recipe = document["recipe"]
    kinds = {(True, True): "in, out", (True, False): "in", (False, True): "out", (False, False): "none"}
    rows = [
        f"| {index} | {member.name} | {member.family.model_type} | {member.architecture.hidden_size} | {kinds[pair]} | "
        f"`{member.version.digest}` | {member.content['license'] or 'not given'} |"
        for index, (member, pair) in enumerate(zip(members, zip(*projected, strict=True), strict=True))
    ]
    tokens = recipe["routing_tokens"]
    first = f"first {tokens} tokens" if tokens else "prompt"
    evidence = f"Until the {first} are read all members count alike, so no\ntoken is weighed by those after it."
    if not tokens:
        evidence = (
            "The weights are those of the prompt, the tokens of the first call, for its own\n"
            "tokens too: for generation, not for perplexities."
        )
    page = _PAGE.format(
        metadata=metadata(rolled.license, ["moe", document["host"]]),
        title=" + ".join(member.name for member in members),
        count=len(members),
        host=document["host"],
        members="\n".join(rows),
        lead=lead.name,
        routing=f"by the mean of the shared embeddings of the {first} (MergeME, section 3.2), in closed form",
        top_k=recipe["top_k"],
        temperature=recipe["temperature"],
        lam=recipe["lam"],
        cost=f"every member runs on the {first}, then those chosen" if tokens else "the members chosen run",
        parameters=parameters,
        dtype=dtype,
        digest=document["digest"],
        evidence=evidence,
        license=license_note(rolled),
        use=use(trust=True, architecture=document["host"]),
        reproduce=reproduce(members, None),
        limits=limits(["A head that is projected in front of another one is as near to it as least squares come."]),
        citation=citation(recipe),
    )
    return page.encode()
