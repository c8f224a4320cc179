"""Granite → GraniteMoE, bit for bit, including its four multipliers."""

from registry.families.family import Family, Translation
from registry.hosts.architecture import Architecture
from registry.hosts.granitemoe import GRANITEMOE, MULTIPLIERS


class Granite(Family):
    """Granite 3's dense models."""

    model_type = "granite"
    class_name = "GraniteForCausalLM"
    special_tokens = (1, 2, None)
    defaults = {
        "attention_bias": False,
        "max_position_embeddings": 2048,
        "mlp_bias": False,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        **dict.fromkeys(MULTIPLIERS, 1.0),
    }
    options = ("attention_bias", "mlp_bias", "rms_norm_eps", *MULTIPLIERS)

    def residual(self, architecture: Architecture) -> float:
        """Return its multiplier."""
        return float(architecture.options["residual_multiplier"])

    def translations(self, architecture: Architecture) -> list[Translation]:
        """Return GraniteMoE."""
        return [Translation(GRANITEMOE, architecture, self.unchanged(architecture))]


GRANITE = Granite()
