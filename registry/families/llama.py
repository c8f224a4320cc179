"""Llama → Mixtral, bit for bit: rope of any scaling, tied or not, any head size; with attention biases → GraniteMoE."""

from registry.families.family import Family, Translation
from registry.hosts.architecture import Architecture
from registry.hosts.granitemoe import GRANITEMOE
from registry.hosts.mixtral import MIXTRAL


class Llama(Family):
    """Llama 1 to 3, and models of the same architecture."""

    model_type = "llama"
    class_name = "LlamaForCausalLM"
    special_tokens = (1, 2, None)
    defaults = {
        "attention_bias": False,
        "max_position_embeddings": 2048,
        "mlp_bias": False,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    }
    options = ("attention_bias", "mlp_bias", "rms_norm_eps")

    def translations(self, architecture: Architecture) -> list[Translation]:
        """Return Mixtral, which cannot hold attention biases, or GraniteMoE, which can."""
        host = GRANITEMOE if architecture.options["attention_bias"] else MIXTRAL
        return [Translation(host, architecture, self.unchanged(architecture))]


LLAMA = Llama()
