"""Dense families: one file a lineage, one line in `FAMILIES` a family; `REFUSED` has the reasons for others."""

from registry.errors import UnsupportedFamilyError
from registry.families.cohere import Cohere, Cohere2
from registry.families.family import Family
from registry.families.gemma import Gemma, Gemma2, Gemma3Text
from registry.families.gpt_neox import GPTNeoX
from registry.families.llama import Granite, Llama, Mistral, SmolLM3
from registry.families.olmo import Olmo2, Olmo3
from registry.families.phi3 import Phi3
from registry.families.qwen import Qwen2, Qwen3
from registry.families.stablelm import StableLM

_LISTED: tuple[type[Family], ...] = (
    Cohere,
    Cohere2,
    Gemma,
    Gemma2,
    Gemma3Text,
    GPTNeoX,
    Granite,
    Llama,
    Mistral,
    Olmo2,
    Olmo3,
    Phi3,
    Qwen2,
    Qwen3,
    SmolLM3,
    StableLM,
)
FAMILIES: dict[str, Family] = {family.model_type: family() for family in _LISTED}
"""`model_type` → family."""

_MIXTURE = "it is a mixture of experts already; register the dense experts it was made of"
_NO_HOST = "no native host that carries it exactly is known to this program"
REFUSED = {
    "gemma3": "it reads images as well; register its text model (model type 'gemma3_text')",
    "gpt2": "it is not in the table of families, to which docs/adding-a-family.md adds",
    "mixtral": _MIXTURE,
    "qwen2_moe": _MIXTURE,
    "qwen3_moe": _MIXTURE,
}
"""`model_type` → reason for its refusal, if known."""


def family_of(model_type: str) -> Family:
    """Return the family of a `model_type` (UnsupportedFamilyError: none; the message has the reason, and all)."""
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    raise UnsupportedFamilyError(
        f"model type {model_type!r} cannot be composed: {REFUSED.get(model_type, _NO_HOST)}",
        f"supported are: {', '.join(sorted(FAMILIES))}",
    )
