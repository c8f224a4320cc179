"""Gemma 2 and the text models of Gemma 3: sandwich norms, which no native host has."""

from collections.abc import Mapping
from typing import Any

from registry.families.family import TANH_GELU, Family, NormOutput, Shapes, attention_shapes, norm_shapes
from registry.families.rope import FULL, SLIDING, every, nested_rope_parameters
from registry.hosts.architecture import Architecture

_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


class Gemma2(Family):
    """Gemma 2."""

    model_type = "gemma2"
    class_name = "Gemma2ForCausalLM"
    special_tokens = (2, 1, 0)
    defaults = {
        "attention_bias": False,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_activation": TANH_GELU,
        "layer_types": None,
        "max_position_embeddings": 8192,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
        "use_bidirectional_attention": None,
    }
    options = (
        "attention_bias",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "layer_types",
        "query_pre_attn_scalar",
        "rms_norm_eps",
        "sliding_window",
        "use_bidirectional_attention",
    )

    def fill_defaults(self, values: dict[str, Any]) -> None:
        """Derive the layers that have a window: every other one."""
        values["hidden_act"] = values["hidden_activation"]
        if values["layer_types"] is None:
            values["layer_types"] = every(2, FULL, SLIDING, values["num_hidden_layers"])

    def trunk_layer(self, architecture: Architecture) -> Shapes:
        """Return the shapes of one layer's trunk tensors."""
        bias = "qkvo" if architecture.options["attention_bias"] else ""
        return attention_shapes(architecture, bias=bias) | norm_shapes(architecture, *_NORMS)

    def attention_input(self, architecture: Architecture) -> NormOutput:
        """Return the norm, which adds 1 to its weight."""
        return NormOutput("input_layernorm", offset=1.0)

    def head_input(self, architecture: Architecture) -> NormOutput:
        """Return the last norm, which adds 1 to its weight."""
        return NormOutput("model.norm", offset=1.0)

    def residual(self, architecture: Architecture) -> None:
        """Return None: attention and MLP are followed by norms."""

    def mlp_input(self, architecture: Architecture) -> NormOutput:
        """Return the norm before the MLP, which adds 1 to its weight."""
        return NormOutput("pre_feedforward_layernorm", offset=1.0)

    def refusal(self, architecture: Architecture) -> str | None:
        """Return why no native host carries it."""
        return "its MLP stands between two norms of its own (sandwich norms), which no native host has"


class Gemma3Text(Gemma2):
    """The text-only models of Gemma 3."""

    model_type = "gemma3_text"
    class_name = "Gemma3ForCausalLM"
    defaults = {
        **Gemma2.defaults,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "max_position_embeddings": 131072,
        "sliding_window_pattern": 6,
        "use_bidirectional_attention": False,
    }

    def fill_defaults(self, values: dict[str, Any]) -> None:
        """Derive the layers that have a window: all but every sixth."""
        if values["layer_types"] is None:
            values["layer_types"] = every(values["sliding_window_pattern"], FULL, SLIDING, values["num_hidden_layers"])
        super().fill_defaults(values)

    def rope(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rope's parameters of full and of sliding layers."""
        return nested_rope_parameters(values, 1_000_000.0, values.get("rope_local_base_freq", 10_000.0))

    def trunk_layer(self, architecture: Architecture) -> Shapes:
        """Return the shapes of one layer's trunk tensors, including the norms of queries and keys."""
        norms = norm_shapes(architecture, "self_attn.q_norm", "self_attn.k_norm", size=architecture.head_dim)
        return super().trunk_layer(architecture) | norms


GEMMA2 = Gemma2()
GEMMA3_TEXT = Gemma3Text()
