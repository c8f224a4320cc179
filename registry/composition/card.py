"""Model cards: the page of any plan, from what its output says of it; no time, path or registry history.

So a card is a function of the members and the recipe. Further facts (scores, languages, the members' addresses on the
Hub, a chosen license) are added between marks when a folder is pushed, so that the card as it was composed can be
recovered byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from registry.composition.licenses import RollUp, roll_up
from registry.composition.method import Card
from registry.errors import CheckpointError
from registry.families.sites import MLP_INPUT

if TYPE_CHECKING:
    from registry.composition.plan import Plan
    from registry.member import Member


PURE = """\
It is a pure function of the members' content digests and of the recipe in `composition.json`. Whoever has the
members registered, each under its name, makes it again and holds every byte against it:"""
"""How a composition is reproduced, in its card."""
UNTUNED = "Nobody tuned the whole: in a domain that none of its members knows it is no better than they are."
TOLD_APART = "Text is told apart by what its tokens look like, not by what is asked: members with like text share it."
_HARM = "Biases and gaps of every member are in it; what their own cards say of use and of harm holds here too."
"""Limits of compositions in their cards."""

_PAGE = f"""\
---
{{metadata}}
---

# {{title}}

{{intro}}

{{members}}

{{settings}}

`composition.json` holds the recipe, the members' digests and the SHA-256 of every other file.{{notes}}

## License

{{license}}

## How to load it

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("path/to/this/folder"{{trust}})
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder"{{trust}})
```
{{vllm}}
## How to reproduce it

{PURE}

```console
{{commands}}
$ reg reproduce path/to/this/folder
```

## Limits

{{limits}}

{{methods}}## Citation

```bibtex
{{works}}
```
"""
_VLLM = """
With vLLM, which has a class of the name in config.json ({architecture}); not tested with this model:

```console
$ vllm serve path/to/this/folder
```
"""
_IN_VLLM = {
    f"{name}ForCausalLM"
    for name in (
        *("Mixtral", "Qwen2Moe", "Qwen3Moe", "GraniteMoe", "FlexOlmo"),
        *("Llama", "Mistral", "Phi3", "Qwen2", "Qwen3", "Olmo2", "Olmo3", "Granite", "Gemma", "Gemma2", "Gemma3"),
        *("Cohere", "Cohere2", "SmolLM3", "GPTNeoX", "StableLm"),
    )
}
"""Classes of transformers in vLLM's table of supported models."""


def card_page(plan: Plan, card: Card) -> bytes:
    """Return README.md of a folder, metadata for the Hub and a page for people, with what its output says of it."""
    from huggingface_hub import ModelCardData

    rolled, code = licenses_of(plan.members, plan.base), plan.output.code(plan)
    metadata = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["expert-registry", "merge", *card.tags],
        license=rolled.license,
    )
    license_words = (
        f"The members' licenses do not come to one: {rolled.why}."
        if rolled.license is None
        else f"{rolled.license}: the most restrictive of the members' licenses, into which all others may go."
    )
    limits = [UNTUNED, *([TOLD_APART] if card.is_routed else []), _HARM, *card.limits]
    columns: dict[str, Sequence[str]] = {
        "index": [str(number) for number in range(len(plan.members))],
        "expert": plan.names,
        **card.first_columns,
        "content digest": [f"`{member.version.digest}`" for member in plan.members],
        "license": [member.content["license"] or "not given" for member in plan.members],
        **card.columns,
    }
    page = _PAGE.format(
        metadata=metadata.to_yaml(line_break="\n"),
        title=card.title or " + ".join(plan.names),
        intro=card.intro,
        members=_table([*columns], [*zip(*columns.values(), strict=True)]),
        settings=_table(("", ""), [*card.settings, ("dtype", plan.dtype), ("composition", f"`{plan.digest}`")]),
        notes=f" {card.notes}" if card.notes else "",
        license=license_words,
        trust=", trust_remote_code=True" if code else "",
        vllm="" if code or plan.class_name not in _IN_VLLM else _VLLM.format(architecture=plan.class_name),
        commands="\n".join(_registering(plan)),
        limits="\n".join(f"- {line}" for line in limits),
        methods="## Methods\n\n" + "\n".join(card.sources) + "\n\n" if card.sources else "",
        works="\n\n".join(work.bibtex() for work in dict.fromkeys(card.works)),
    )
    return page.encode()


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head, *others = (f"| {' | '.join(cells)} |" for cells in (columns, *rows))
    return "\n".join([head if any(columns) else "|" + " |" * len(columns), "|" + "---|" * len(columns), *others])


def licenses_of(members: Sequence[Member], base: Member | None) -> RollUp:
    """Return the common license of the members, and of a base model that took part."""
    return roll_up({member.version.name: member.content["license"] for member in (*members, *([base] if base else []))})


def _registering(plan: Plan) -> Iterator[str]:
    """Yield the command that registers each version, of adapters and their base model with what was counted of it.

    Cards of routers that are trained rows list the public expert among the experts too, as they did before other base
    models could be members, and those of whole experts name no text: the bytes of what was composed stay.
    """
    router, base = plan.recipe.router_method, plan.base
    is_anchored = router is not None and router.is_trained
    versions = [
        ("expert" if is_anchored else member.version.kind, member.version, _of_adapter(member, base) if base else "")
        for member in plan.members
    ]
    if base:  # an adapter is registered after the model that it is of
        at = 0 if any(more for _, _, more in versions) else len(versions)
        versions.insert(at, ("base", base.version, f" --own-text {base.tokens}" if base.tokens else ""))
    told = ((kind, one.name, more, one.digest) for kind, one, more in versions)
    for kind, name, more, digest in dict.fromkeys(told):  # copies have one
        yield f"$ reg add-{kind} {name} CKPT{more}    # {digest[:12]}…"


def _of_adapter(member: Member, base: Member) -> str:
    """Return the options that an adapter was registered with, empty for a whole expert."""
    if not member.is_adapter:
        return ""
    return f" --base {base.name} --data FILE{'' if member.has_statistics(MLP_INPUT) else ' --sites counts'}"


CARD = "README.md"
_BEGIN, _END = "# reg push: begin", "# reg push: end"
_BELOW_BEGIN, _BELOW_END = "<!-- reg push: begin -->", "<!-- reg push: end -->"
_INSTEAD = "# instead of "
_FRONT = re.compile(rf"^{_BEGIN}\n(?:{_INSTEAD}(?P<line>license: .*)\n)?(?s:.*?)^{_END}\n", re.MULTILINE)
_BELOW = re.compile(rf"^{_BELOW_BEGIN}\n(?s:.*?)^{_BELOW_END}\n", re.MULTILINE)
_LICENSE = re.compile(r"^license: .*\n", re.MULTILINE)


def with_additions(card: bytes, metadata: str, page: str) -> bytes:
    """Add lines of YAML and a section of Markdown, which may be empty, to a card, in place of those of an earlier push.

    A license in `metadata` replaces that of the card (CheckpointError: the card has no front matter).
    """
    head, rest = _parts(without_additions(card).decode())
    own = _LICENSE.search(head)
    if own and _LICENSE.search(metadata):
        block = f"{_BEGIN}\n{_INSTEAD}{own[0]}{metadata}{_END}\n"
        head = head[: own.start()] + block + head[own.end() :]
    elif metadata:
        head += f"{_BEGIN}\n{metadata}{_END}\n"
    if page:
        rest += f"{_BELOW_BEGIN}\n{page.strip()}\n{_BELOW_END}\n"
    return (head + rest).encode()


def without_additions(card: bytes) -> bytes:
    """Remove additions from a card; a card without additions, or that is not text, is returned unchanged."""
    try:
        head, rest = _parts(card.decode())
    except (UnicodeDecodeError, CheckpointError):
        return card
    head = _FRONT.sub(lambda match: f"{match['line']}\n" if match["line"] else "", head, count=1)
    return (head + _BELOW.sub("", rest, count=1)).encode()


def license_of(card: bytes) -> str | None:
    """Return the license in a card's front matter, or None."""
    try:
        head, _ = _parts(card.decode())
    except (UnicodeDecodeError, CheckpointError):
        return None
    match = _LICENSE.search(head)
    return match[0].removeprefix("license: ").strip() if match else None


def _parts(card: str) -> tuple[str, str]:
    """Return the front matter without the line that ends it, and everything from that line on."""
    end = card.find("\n---\n", 4)
    if not card.startswith("---\n") or end < 0:
        raise CheckpointError(f"{CARD} has no metadata", "compose the folder again")
    return card[: end + 1], card[end + 1 :]
