"""Mistral → Mixtral, bit for bit, including its sliding window."""

from registry.families.family import Family, Translation
from registry.hosts.architecture import Architecture
from registry.hosts.mixtral import MIXTRAL


class Mistral(Family):
    """Mistral 7B and its successors of model type `mistral`."""

    model_type = "mistral"
    class_name = "MistralForCausalLM"
    special_tokens = (1, 2, None)
    defaults = {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
    }
    options = ("rms_norm_eps", "sliding_window")

    def translations(self, architecture: Architecture) -> list[Translation]:
        """Return Mixtral."""
        return [Translation(MIXTRAL, architecture, self.unchanged(architecture))]


MISTRAL = Mistral()
