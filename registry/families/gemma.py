"""Gemma 1 to 3, whose norms add 1 to their weight."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from registry.families.family import TANH_GELU, Family, NormOutput, Translation
from registry.families.rope import fill_layer_types, nested_rope_parameters
from registry.hosts import Constant, Trunk
from registry.hosts.architecture import Architecture
from registry.hosts.native import GRANITEMOE


class Gemma(Family):
    """Gemma 1 and CodeGemma → GraniteMoE: the 1 that Gemma adds is put into the norms; embeddings times √H.

    Exact in float32.
    """

    model_type = "gemma"
    class_name = "GemmaForCausalLM"
    special_tokens = (2, 1, 0)
    defaults = {
        "head_dim": 256,
        "hidden_act": TANH_GELU,
        "max_position_embeddings": 8192,
        "num_key_value_heads": 16,
        "tie_word_embeddings": True,
        "use_bidirectional_attention": None,
    }
    options = ("attention_bias", "rms_norm_eps", "use_bidirectional_attention")
    attention_norm = NormOutput("input_layernorm", offset=1.0)
    last_norm = NormOutput("model.norm", offset=1.0)
    mlp_norm = NormOutput(offset=1.0)
    refused_options = {
        "use_bidirectional_attention": "its attention is bidirectional (use_bidirectional_attention), which no native "
        "host supports"
    }

    def fill_defaults(self, values: dict[str, Any]) -> None:
        """Read the old name of its activation."""
        if values["hidden_act"] == "gelu":
            values["hidden_act"] = TANH_GELU

    def translations(self, architecture: Architecture) -> list[Translation]:
        trunk: dict[str, Trunk | Constant] = {}
        for name, tensor in self.unchanged(architecture).items():
            assert isinstance(tensor, Trunk)
            trunk[name] = replace(tensor, offset=1.0) if name.endswith("norm.weight") else tensor
        carried = architecture.with_options(embedding_multiplier=math.sqrt(architecture.hidden_size))
        note = "Gemma adds 1 to its norms' weights in float32; written in 16 bits, the sums are rounded once more"
        return [Translation(GRANITEMOE, carried, trunk, (note,))]


class Gemma2(Family):
    """Gemma 2: sandwich norms, which no native host has."""

    model_type = "gemma2"
    class_name = "Gemma2ForCausalLM"
    special_tokens = (2, 1, 0)
    defaults = {
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_activation": TANH_GELU,
        "max_position_embeddings": 8192,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
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
    norms = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    attention_norm = NormOutput("input_layernorm", offset=1.0)
    last_norm = NormOutput("model.norm", offset=1.0)
    mlp_norm = NormOutput("pre_feedforward_layernorm", offset=1.0)
    refused = "its MLP stands between two norms of its own (sandwich norms), which no native host has"

    def fill_defaults(self, values: dict[str, Any]) -> None:
        """Derive the layers that have a window: every other one."""
        values["hidden_act"] = values["hidden_activation"]
        fill_layer_types(values, 2)


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
    has_head_norms = True

    def fill_defaults(self, values: dict[str, Any]) -> None:
        """Derive the layers that have a window: all but every sixth."""
        fill_layer_types(values, values["sliding_window_pattern"])
        super().fill_defaults(values)

    def rope(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return nested_rope_parameters(values, 1_000_000.0, values.get("rope_local_base_freq", 10_000.0))
