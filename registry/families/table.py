"""Dense families: one file a lineage, one line in `FAMILIES` a family; `REFUSED` has the reasons for others."""

from registry.errors import UnsupportedFamilyError
from registry.families.cohere import Cohere, Cohere2
from registry.families.family import Family
from registry.families.gemma import Gemma, Gemma2, Gemma3Text
from registry.families.gpt_neox import GPTNeoX
from registry.families.llama import Granite, Llama, Mistral, SmolLM3
from registry.families.olmo import Olmo2, Olmo3
from registry.families.other import other_family
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

_UNKNOWN = "transformers has no causal language model of this type"
REFUSED = {"gemma3": "it reads images as well; register its text model (model type 'gemma3_text')"}
"""`model_type` → reason for its refusal, if known."""


def family_of(model_type: str) -> Family:
    """Return the family of a `model_type`, which transformers may know alone (UnsupportedFamilyError: nobody does)."""
    family = FAMILIES.get(model_type) or (None if model_type in REFUSED else other_family(model_type))
    if family is not None:
        return family
    raise UnsupportedFamilyError(
        f"model type {model_type!r} cannot be registered: {REFUSED.get(model_type, _UNKNOWN)}",
        f"supported are: {', '.join(sorted(FAMILIES))}; and, as base models of adapters, all other causal language "
        "models of the installed transformers",
    )
