"""What the model cards of all compositions share: metadata, license, loading, reproducing, limits, citation."""

from collections.abc import Mapping, Sequence
from typing import Any

from registry.composition.cards.citations import bibtex, cited
from registry.composition.cards.licenses import RollUp, roll_up
from registry.member import Member

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
"""Classes of transformers that vLLM's table of supported models has."""
_REPRODUCE = """\
## How to reproduce it

It is a pure function of the members' content digests and of the recipe in `composition.json`. Whoever has the
members registered, each under its name, makes it again and holds every byte against it:

```console
{commands}
$ reg reproduce path/to/this/folder
```
"""
_CITE = """\
## Citation

```bibtex
{works}
```
"""


def licenses_of(members: Sequence[Member], base: Member | None) -> RollUp:
    """Return what the licenses of the members, and of a base model that took part, come to."""
    return roll_up({member.version.name: member.content["license"] for member in (*members, *([base] if base else []))})


def metadata(license_id: str | None, tags: Sequence[str]) -> str:
    """Return the front matter that the Hub reads, as far as it follows from what was composed."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["expert-registry", "merge", *tags],
        license=license_id,
    )
    return str(data.to_yaml(line_break="\n"))


def license_note(found: RollUp) -> str:
    """Return the paragraph on the license."""
    if found.license is None:
        return f"## License\n\nThe members' licenses do not come to one: {found.why}.\n"
    return (
        f"## License\n\n{found.license}: the most restrictive of the members' licenses, into which all others may go.\n"
    )


def use(*, trust: bool, architecture: str) -> str:
    """Return how it is loaded.

    Args:
        trust: the folder carries code of its own.
        architecture: the class of transformers that it names.
    """
    vllm = "" if trust or architecture not in _IN_VLLM else _VLLM.format(architecture=architecture)
    return _USE.format(trust=", trust_remote_code=True" if trust else "", vllm=vllm)


def reproduce(members: Sequence[Mapping[str, Any]], base: Mapping[str, Any] | None) -> str:
    """Return how it is made again.

    Args:
        members: name and digest of each, as in the document.
        base: the same of the base model, where it took part.
    """
    added = [("add-expert", member) for member in members] + ([("add-base", base)] if base else [])
    commands = "\n".join(f"$ reg {command} {one['name']} CKPT    # {one['digest'][:12]}…" for command, one in added)
    return _REPRODUCE.format(commands=commands)


def limits(notes: Sequence[str], *, routed: bool = True) -> str:
    """Return what a user should beware of.

    Args:
        notes: what the host changes.
        routed: text is told apart.
    """
    apart = "Text is told apart by what its tokens look like, not by what is asked: members with like text share it."
    lines = [
        "Nobody tuned the whole: in a domain that none of its members knows it is no better than they are.",
        *([apart] if routed else []),
        "Biases and gaps of every member are in it; what their own cards say of use and of harm holds here too.",
        *notes,
    ]
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines) + "\n"


def citation(recipe: Mapping[str, Any]) -> str:
    """Return the works that its methods come from."""
    return _CITE.format(works=bibtex(cited(recipe)))
