"""Cohere 2 → Cohere2-MoE, bit for bit: attention and MLP share one norm; layers without a window have no rope."""

from typing import Any, ClassVar

from registry.families.family import Family, NormOutput, Shapes, Translation, attention_shapes, norm_shapes
from registry.families.rope import FULL, SLIDING, every
from registry.hosts.architecture import Architecture
from registry.hosts.cohere2_moe import COHERE2_MOE


class Cohere2(Family):
    """Command R7B and related models."""

    model_type = "cohere2"
    class_name = "Cohere2ForCausalLM"
    special_tokens = (5, 255001, 0)
    defaults = {
        "attention_bias": False,
        "layer_norm_eps": 1e-5,
        "layer_types": None,
        "logit_scale": 0.0625,
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "tie_word_embeddings": True,
    }
    options: ClassVar[tuple[str, ...]] = (
        "attention_bias",
        "layer_norm_eps",
        "layer_types",
        "logit_scale",
        "sliding_window",
    )

    def fill_defaults(self, values: dict[str, Any]) -> None:
        """Derive the layers that have a window, and the head size, which always divides the hidden size."""
        values["head_dim"] = values["hidden_size"] // values["num_attention_heads"]
        if values["layer_types"] is None:
            values["layer_types"] = every(values["sliding_window_pattern"], FULL, SLIDING, values["num_hidden_layers"])

    def trunk_layer(self, architecture: Architecture) -> Shapes:
        """Return the shapes of one layer's trunk tensors."""
        bias = "qkvo" if architecture.options["attention_bias"] else ""
        return attention_shapes(architecture, bias=bias) | norm_shapes(architecture, "input_layernorm")

    def head_input(self, architecture: Architecture) -> NormOutput:
        """Return the last norm, which subtracts the mean."""
        return NormOutput("model.norm", centred=True)

    def mlp_input(self, architecture: Architecture) -> NormOutput:
        """Return the layer's one norm."""
        return NormOutput("input_layernorm")

    def translations(self, architecture: Architecture) -> list[Translation]:
        """Return Cohere2-MoE."""
        return [Translation(COHERE2_MOE, architecture, self.unchanged(architecture))]


COHERE2 = Cohere2()
