"""GPT-NeoX: an MLP without a gate and with biases, which no native host has."""

from collections.abc import Mapping
from typing import Any

from registry.families.family import Attention, Family, NormOutput, Shapes, norm_shapes
from registry.hosts.architecture import Architecture


class GPTNeoX(Family):
    """Pythia, GPT-NeoX-20B."""

    model_type = "gpt_neox"
    class_name = "GPTNeoXForCausalLM"
    special_tokens = (0, 2, None)
    defaults = {
        "attention_bias": True,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "use_parallel_residual": True,
    }
    options = ("attention_bias", "layer_norm_eps", "use_parallel_residual")
    layers = "gpt_neox.layers"
    embedding = "gpt_neox.embed_in.weight"
    head = "embed_out.weight"
    down = "mlp.dense_4h_to_h"
    renamed = {"embed_out.weight": "lm_head.weight"}
    free_head_dim = False
    attention_norm = NormOutput("input_layernorm", bias=True)
    mlp_norm = NormOutput(bias=True)
    last_norm = NormOutput("gpt_neox.final_layer_norm", bias=True, centred=True)
    refused = "its MLP is not gated and has biases, which no native host has"

    def fill_defaults(self, values: dict[str, Any]) -> None:
        """Derive its heads: one of keys for each of queries."""
        values["num_key_value_heads"] = values["num_attention_heads"]

    def rope(self, values: Mapping[str, Any]) -> dict[str, Any]:
        own = {
            "rope_theta": values.get("rotary_emb_base", self.rope_theta),
            "partial_rotary_factor": values.get("rotary_pct", 0.25),
        }
        return super().rope({**values, **own})

    def trunk_layer(self, architecture: Architecture) -> Shapes:
        hidden = architecture.hidden_size
        shapes: Shapes = {
            "attention.query_key_value.weight": (3 * hidden, hidden),
            "attention.dense.weight": (hidden, hidden),
            **norm_shapes(architecture, bias=True),
        }
        if architecture.options["attention_bias"]:
            shapes |= {"attention.query_key_value.bias": (3 * hidden,), "attention.dense.bias": (hidden,)}
        return shapes

    def mlp_layer(self, architecture: Architecture) -> Shapes:
        hidden, inner = architecture.hidden_size, architecture.intermediate_size
        return {
            "mlp.dense_h_to_4h.weight": (inner, hidden),
            "mlp.dense_h_to_4h.bias": (inner,),
            "mlp.dense_4h_to_h.weight": (hidden, inner),
            "mlp.dense_4h_to_h.bias": (hidden,),
        }

    def attention(self, architecture: Architecture) -> Attention:
        """Return the linear modules of each layer's attention; each head's query, key and value rows are adjacent."""
        size, fused = architecture.head_dim, "attention.query_key_value"
        values = tuple(
            row
            for head in range(architecture.num_attention_heads)
            for row in range((3 * head + 2) * size, (3 * head + 3) * size)
        )
        return Attention((fused,), "attention.dense", fused, values)
