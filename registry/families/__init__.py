"""Dense families: one file a family, one line a family in `FAMILIES`; what is refused says why in `REFUSED`."""

from registry.architecture import Architecture
from registry.errors import UnsupportedFamilyError
from registry.families.family import PROJECTIONS, Family
from registry.families.llama import LLAMA
from registry.families.mistral import MISTRAL
from registry.families.qwen3 import QWEN3

FAMILIES = {family.model_type: family for family in (LLAMA, MISTRAL, QWEN3)}
"""`model_type` → family."""

_SANDWICH = "its MLP stands between two norms of its own (sandwich norms), which no native host has"
REFUSED = {
    "gemma2": _SANDWICH,
    "gemma3": _SANDWICH,
    "gemma3_text": _SANDWICH,
    "gpt_neox": "its MLP is not gated and has biases, which no native host has",
    "stablelm": "its norms have biases, which no native host has beside a plain router",
    "gpt2": "its MLP is not gated and has biases, which no native host has",
    "mixtral": "it is a mixture of experts already; register the dense experts it was made of",
    "qwen3_moe": "it is a mixture of experts already; register the dense experts it was made of",
}
"""`model_type` → why it is refused, where the reason is known."""


def family_of(model_type: str) -> Family:
    """Return the family of a `model_type`.

    Raises:
        UnsupportedFamilyError: there is none; the message says which there are, and why this is none.
    """
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    reason = REFUSED.get(model_type, "no host that carries it exactly is known to this program")
    raise UnsupportedFamilyError(
        f"model type {model_type!r} cannot be composed: {reason}",
        f"supported are: {', '.join(sorted(FAMILIES))}",
    )


__all__ = ["FAMILIES", "PROJECTIONS", "Architecture", "Family", "family_of"]
