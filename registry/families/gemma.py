"""Gemma 1 → GraniteMoE: the 1 that Gemma adds is put into the norms; embeddings times √H. Exact in float32."""

import math
from dataclasses import replace
from typing import Any

from registry.families.family import TANH_GELU, Family, NormOutput, Translation
from registry.hosts import Constant, Trunk
from registry.hosts.architecture import Architecture
from registry.hosts.granitemoe import GRANITEMOE


class Gemma(Family):
    """Gemma 1 and CodeGemma."""

    model_type = "gemma"
    class_name = "GemmaForCausalLM"
    special_tokens = (2, 1, 0)
    defaults = {
        "attention_bias": False,
        "head_dim": 256,
        "hidden_act": TANH_GELU,
        "max_position_embeddings": 8192,
        "num_key_value_heads": 16,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "use_bidirectional_attention": None,
    }
    options = ("attention_bias", "rms_norm_eps", "use_bidirectional_attention")

    def fill_defaults(self, values: dict[str, Any]) -> None:
        """Read the old name of its activation."""
        if values["hidden_act"] == "gelu":
            values["hidden_act"] = TANH_GELU

    def attention_input(self, architecture: Architecture) -> NormOutput:
        """Return the norm, which adds 1 to its weight."""
        return NormOutput("input_layernorm", offset=1.0)

    def head_input(self, architecture: Architecture) -> NormOutput:
        """Return the last norm, which adds 1 to its weight."""
        return NormOutput("model.norm", offset=1.0)

    def mlp_input(self, architecture: Architecture) -> NormOutput:
        """Return the norm, which adds 1 to its weight."""
        return NormOutput(offset=1.0)

    def refusal(self, architecture: Architecture) -> str | None:
        """Return why GraniteMoE does not carry this model, or None if it does."""
        if architecture.options["use_bidirectional_attention"]:
            return "its attention is bidirectional (use_bidirectional_attention), which no native host supports"
        return None

    def translations(self, architecture: Architecture) -> list[Translation]:
        """Return GraniteMoE."""
        trunk: dict[str, Trunk | Constant] = {}
        for name, tensor in self.unchanged(architecture).items():
            assert isinstance(tensor, Trunk)
            trunk[name] = replace(tensor, offset=1.0) if name.endswith("norm.weight") else tensor
        carried = architecture.with_options(embedding_multiplier=math.sqrt(architecture.hidden_size))
        note = "Gemma adds 1 to its norms' weights in float32; written in 16 bits, the sums are rounded once more"
        return [Translation(GRANITEMOE, carried, trunk, (note,))]


GEMMA = Gemma()
