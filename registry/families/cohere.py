"""Cohere 1 and 2 → Cohere2-MoE, bit for bit."""

from typing import Any, ClassVar

from registry.families.family import Family, NormOutput, Shapes, Translation
from registry.families.rope import SLIDING, fill_layer_types
from registry.hosts.architecture import Architecture
from registry.hosts.native import COHERE2_MOE


class Cohere2(Family):
    """Command R7B and related models: attention and MLP share one norm; layers without a window have no rope."""

    model_type = "cohere2"
    class_name = "Cohere2ForCausalLM"
    special_tokens = (5, 255001, 0)
    defaults = {
        "layer_norm_eps": 1e-5,
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
    host = COHERE2_MOE
    free_head_dim = False
    norms = ("input_layernorm",)
    mlp_norm = NormOutput("input_layernorm")
    last_norm = NormOutput("model.norm", centred=True)

    def fill_defaults(self, values: dict[str, Any]) -> None:
        fill_layer_types(values, values["sliding_window_pattern"])


class Cohere(Cohere2):
    """Command R, Aya 23: every layer gets a window as long as the context, and with it its rope."""

    model_type = "cohere"
    class_name = "CohereForCausalLM"
    defaults = {
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "use_qk_norm": False,
    }
    rope_theta = 500_000.0
    options = ("attention_bias", "layer_norm_eps", "logit_scale", "use_qk_norm")
    refused_options = {
        "use_qk_norm": "it normalises queries and keys (use_qk_norm), which no native host does in this way"
    }

    def fill_defaults(self, values: dict[str, Any]) -> None:
        """Derive nothing: all layers are alike."""

    def trunk_layer(self, architecture: Architecture) -> Shapes:
        shapes = super().trunk_layer(architecture)
        if architecture.options["use_qk_norm"]:
            shapes["self_attn.q_norm.weight"] = (architecture.num_attention_heads, architecture.head_dim)
            shapes["self_attn.k_norm.weight"] = (architecture.num_key_value_heads, architecture.head_dim)
        return shapes

    def translations(self, architecture: Architecture) -> list[Translation]:
        carried = architecture.with_options(
            layer_types=[SLIDING] * architecture.num_hidden_layers, sliding_window=architecture.max_position_embeddings
        )
        return [Translation(COHERE2_MOE, carried, self.unchanged(architecture))]
