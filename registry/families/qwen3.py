"""Qwen3 → Qwen3-MoE, bit for bit, attention biases included; with a window by layer → Mellum."""

from typing import Any

from registry.families.family import Family, Shapes, Translation, norm_shapes
from registry.families.rope import SLIDING, window_by_layer
from registry.hosts.architecture import Architecture
from registry.hosts.mellum import MELLUM
from registry.hosts.qwen3_moe import QWEN3_MOE


class Qwen3(Family):
    """Qwen3's dense models."""

    model_type = "qwen3"
    class_name = "Qwen3ForCausalLM"
    defaults = {
        "attention_bias": False,
        "head_dim": 128,
        "layer_types": None,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
    }
    options = ("attention_bias", "layer_types", "rms_norm_eps", "sliding_window")

    def fill_defaults(self, values: dict[str, Any]) -> None:
        """Derive the layers that have a window."""
        window_by_layer(values)

    def trunk_layer(self, architecture: Architecture) -> Shapes:
        """Return the shapes of one layer's trunk tensors, including the norms of queries and keys."""
        norms = norm_shapes(architecture, "self_attn.q_norm", "self_attn.k_norm", size=architecture.head_dim)
        return super().trunk_layer(architecture) | norms

    def translations(self, architecture: Architecture) -> list[Translation]:
        """Return Qwen3-MoE, or Mellum if layers have a window."""
        host = MELLUM if SLIDING in architecture.options["layer_types"] else QWEN3_MOE
        return [Translation(host, architecture, self.unchanged(architecture))]


QWEN3 = Qwen3()
