"""Model cards: the page of any plan, from what its output says of it; no time, path or registry history.

So a card is a function of the members and the recipe. Further facts (scores, languages, the members' addresses on the
Hub, a chosen license) are added between marks when a folder is pushed, so that the card as it was composed can be
recovered byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from registry.composition.licenses import RollUp, roll_up
from registry.composition.method import Card, Work
from registry.errors import CheckpointError

if TYPE_CHECKING:
    from registry.composition.plan import Plan
    from registry.member import Member


_PAGE = """\
---
{metadata}
---

# {title}

{intro}

{members}

{settings}

`composition.json` holds the recipe, the members' digests and the SHA-256 of every other file.{notes}

{license}
{use}
{reproduce}
{limits}
{methods}{citation}"""

_USE = """\
## How to load it

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("path/to/this/folder"{trust})
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder"{trust})
```
{vllm}"""
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
PURE = """\
It is a pure function of the members' content digests and of the recipe in `composition.json`. Whoever has the
members registered, each under its name, makes it again and holds every byte against it:"""
"""How a composition is reproduced, in its card."""
UNTUNED = "Nobody tuned the whole: in a domain that none of its members knows it is no better than they are."
TOLD_APART = "Text is told apart by what its tokens look like, not by what is asked: members with like text share it."
"""Limits of compositions in their cards."""

_REPRODUCE = f"""\
## How to reproduce it

{PURE}

```console
{{commands}}
$ reg reproduce path/to/this/folder
```
"""
_CITE = """\
## Citation

```bibtex
{works}
```
"""


def card_page(plan: Plan, card: Card) -> bytes:
    """Return README.md of a folder: metadata for the Hub, and a page for people.

    Args:
        plan: the composition.
        card: what its output says of it.
    """
    rolled = licenses_of(plan.members, plan.base)
    router = plan.recipe.router_method
    methods = "## Methods\n\n" + "\n".join(card.sources) + "\n\n" if card.sources else ""
    settings = [*card.settings, ("dtype", plan.dtype), ("composition", f"`{plan.digest}`")]
    page = _PAGE.format(
        metadata=metadata(rolled.license, card.tags),
        title=card.title,
        intro=card.intro,
        members=_table(card.columns, card.rows),
        settings=_table(("", ""), settings),
        notes=f" {card.notes}" if card.notes else "",
        license=license_note(rolled),
        use=use(trust=bool(plan.output.code(plan)), architecture=plan.class_name),
        reproduce=reproduce(plan.members, plan.base, anchored=router is not None and router.is_trained),
        limits=limits(card.limits, routed=card.is_routed),
        methods=methods,
        citation=citation(card.works),
    )
    return page.encode()


def license_cell(member: Member) -> str:
    """Return what the table of members says of a license."""
    return member.content["license"] or "not given"


def digest_cell(member: Member) -> str:
    """Return what the table of members says of a digest."""
    return f"`{member.version.digest}`"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head, *others = (f"| {' | '.join(cells)} |" for cells in (columns, *rows))
    return "\n".join([head if any(columns) else "|" + " |" * len(columns), "|" + "---|" * len(columns), *others])


def licenses_of(members: Sequence[Member], base: Member | None) -> RollUp:
    """Return the common license of the members, and of a base model that took part."""
    return roll_up({member.version.name: member.content["license"] for member in (*members, *([base] if base else []))})


def metadata(license_id: str | None, tags: Sequence[str]) -> str:
    """Return the front matter for the Hub, as far as it follows from the composition."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["expert-registry", "merge", *tags],
        license=license_id,
    )
    return str(data.to_yaml(line_break="\n"))


def license_note(common: RollUp) -> str:
    """Return the paragraph on the license."""
    if common.license is None:
        return f"## License\n\nThe members' licenses do not come to one: {common.why}.\n"
    all_others = "the most restrictive of the members' licenses, into which all others may go"
    return f"## License\n\n{common.license}: {all_others}.\n"


def use(*, trust: bool, architecture: str) -> str:
    """Return the section on loading.

    Args:
        trust: the folder has modelling code of its own.
        architecture: the class of transformers in its config.json.
    """
    vllm = "" if trust or architecture not in _IN_VLLM else _VLLM.format(architecture=architecture)
    return _USE.format(trust=", trust_remote_code=True" if trust else "", vllm=vllm)


def reproduce(members: Sequence[Member], base: Member | None, *, anchored: bool = False) -> str:
    """Return the section on reproduction.

    Args:
        members: the members.
        base: the base model, if it took part.
        anchored: the routers are rows that were trained. Cards of these list the public expert among the experts too,
            as they did before other base models could be members: the bytes of what was composed stay.
    """
    versions = [("expert" if anchored else member.version.kind, member.version) for member in members]
    versions += [("base", base.version)] if base else []
    used = dict.fromkeys((kind, one.name, one.digest) for kind, one in versions)  # copies have one
    commands = "\n".join(f"$ reg add-{kind} {name} CKPT    # {digest[:12]}…" for kind, name, digest in used)
    return _REPRODUCE.format(commands=commands)


def limits(notes: Sequence[str], *, routed: bool = True) -> str:
    """Return the section on limits.

    Args:
        notes: changes that the host makes.
        routed: the model has routers.
    """
    lines = [
        UNTUNED,
        *([TOLD_APART] if routed else []),
        "Biases and gaps of every member are in it; what their own cards say of use and of harm holds here too.",
        *notes,
    ]
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines) + "\n"


def citation(works: Sequence[Work]) -> str:
    """Return the section with the works to cite."""
    return _CITE.format(works="\n\n".join(work.bibtex() for work in dict.fromkeys(works)))


CARD = "README.md"
_BEGIN, _END = "# reg push: begin", "# reg push: end"
_BELOW_BEGIN, _BELOW_END = "<!-- reg push: begin -->", "<!-- reg push: end -->"
_INSTEAD = "# instead of "
_FRONT = re.compile(rf"^{_BEGIN}\n(?:{_INSTEAD}(?P<line>license: .*)\n)?(?s:.*?)^{_END}\n", re.MULTILINE)
_BELOW = re.compile(rf"^{_BELOW_BEGIN}\n(?s:.*?)^{_BELOW_END}\n", re.MULTILINE)
_LICENSE = re.compile(r"^license: .*\n", re.MULTILINE)


def with_additions(card: bytes, metadata: str, page: str) -> bytes:
    """Add metadata and a section to a composition's card.

    Args:
        card: the card; additions of an earlier push are replaced.
        metadata: lines of YAML, each with its newline; a license in them replaces that of the card.
        page: Markdown for the end of the page, or an empty string.

    Raises:
        CheckpointError: the card has no front matter.
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
