"""Model card of a SIMoE: its members, its shared weights and its use."""

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

{count} sparse interpolated experts of one base model ({host}), put together by expert-registry.

| index | expert | content digest | license |
|---|---|---|---|
{members}

| | |
|---|---|
| base model | {base} `{base_digest}` |
| shared weights | `{delta}`, trained by {all} experts together |
| router | the mean embedding of the first {prompt} tokens gives each expert its weight, for the whole sequence |
| parameters | {parameters:,}, all of which run on every token |
| dtype | {dtype} |
| composition | `{digest}` |

`composition.json` holds the recipe, the members' digests and the SHA-256 of every other file. A linear layer of weight
W gives W x + g ∘ (D x), where D is shared and g is the mean of the members' masks by their weights. Before there are
{prompt} tokens, all experts have equal weights. The mask and the router row of an expert that is no member are not
here; what D learned with it is.

{license}
{use}
{reproduce}
{limits}
{citation}"""


def simoe_card(
    document: Mapping[str, Any],
    members: Sequence[Member],
    base: Member,
    *,
    rolled: RollUp,
    parameters: int,
    dtype: str,
    architecture: str,
) -> bytes:
    """Return README.md of a SIMoE's folder: metadata for the Hub, and a page for people.

    Args:
        document: the composition's document with its digest.
        members: the members, in order.
        base: the base model.
        rolled: the roll-up of all licenses.
        parameters: the number of stored weights.
        dtype: the dtype of the weights.
        architecture: the class in the modelling file.
    """
    trained = members[0].content["simoe"]
    rows = [
        f"| {index} | {member.name} | `{member.version.digest}` | {member.content['license'] or 'not given'} |"
        for index, member in enumerate(members)
    ]
    page = _PAGE.format(
        metadata=metadata(rolled.license, ["simoe", document["host"]]),
        title=" + ".join(member.name for member in members),
        count=len(members),
        host=document["host"],
        members="\n".join(rows),
        base=base.name,
        base_digest=base.version.digest,
        delta=trained["delta"],
        all=trained["experts"],
        prompt=trained["prompt_tokens"],
        parameters=parameters,
        dtype=dtype,
        digest=document["digest"],
        license=license_note(rolled),
        use=use(trust=True, architecture=architecture),
        reproduce=reproduce(members, base),
        limits=limits(()),
        citation=citation(document["recipe"]),
    )
    return page.encode()
