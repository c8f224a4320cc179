"""Dense families: one file and one line in `FAMILIES` for each; `REFUSED` has the reasons for others."""

from registry.errors import UnsupportedFamilyError
from registry.families.cohere import COHERE
from registry.families.cohere2 import COHERE2
from registry.families.family import Family
from registry.families.gemma import GEMMA
from registry.families.gemma2 import GEMMA2, GEMMA3_TEXT
from registry.families.gpt_neox import GPT_NEOX
from registry.families.granite import GRANITE
from registry.families.llama import LLAMA
from registry.families.mistral import MISTRAL
from registry.families.olmo2 import OLMO2
from registry.families.olmo3 import OLMO3
from registry.families.phi3 import PHI3
from registry.families.qwen2 import QWEN2
from registry.families.qwen3 import QWEN3
from registry.families.smollm3 import SMOLLM3
from registry.families.stablelm import STABLELM

_LISTED: tuple[Family, ...] = (
    COHERE,
    COHERE2,
    GEMMA,
    GEMMA2,
    GEMMA3_TEXT,
    GPT_NEOX,
    GRANITE,
    LLAMA,
    MISTRAL,
    OLMO2,
    OLMO3,
    PHI3,
    QWEN2,
    QWEN3,
    SMOLLM3,
    STABLELM,
)
FAMILIES: dict[str, Family] = {family.model_type: family for family in _LISTED}
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
    """Return the family of a `model_type`.

    Raises:
        UnsupportedFamilyError: no family matches; the message has the reason and the supported families.
    """
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    raise UnsupportedFamilyError(
        f"model type {model_type!r} cannot be composed: {REFUSED.get(model_type, _NO_HOST)}",
        f"supported are: {', '.join(sorted(FAMILIES))}",
    )
