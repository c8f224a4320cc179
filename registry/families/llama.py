"""Llama, Mistral, Granite and SmolLM3 → Mixtral or GraniteMoE, bit for bit."""

from typing import Any

from registry.families.family import Family, Translation
from registry.families.rope import FULL, SLIDING
from registry.hosts.architecture import Architecture
from registry.hosts.native import GRANITEMOE, GRANITEMOE_SWA, MIXTRAL, MULTIPLIERS, sinks


class Llama(Family):
    """Llama 1 to 3, and models of the same architecture → Mixtral, or with attention biases GraniteMoE.

    Ropes may have any scaling, heads any size, and the head may be tied.
    """

    model_type = "llama"
    class_name = "LlamaForCausalLM"
    special_tokens = (1, 2, None)
    defaults = {"max_position_embeddings": 2048}
    options = ("attention_bias", "mlp_bias", "rms_norm_eps")

    def translations(self, architecture: Architecture) -> list[Translation]:
        """Return Mixtral, which cannot hold attention biases, or GraniteMoE, which can."""
        host = GRANITEMOE if architecture.options["attention_bias"] else MIXTRAL
        return [Translation(host, architecture, self.unchanged(architecture))]


class Mistral(Family):
    """Mistral 7B and its successors of model type `mistral` → Mixtral, including its sliding window."""

    model_type = "mistral"
    class_name = "MistralForCausalLM"
    special_tokens = (1, 2, None)
    defaults = {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096}
    options = ("rms_norm_eps", "sliding_window")
    host = MIXTRAL


class Granite(Family):
    """Granite 3's dense models → GraniteMoE, including its four multipliers."""

    model_type = "granite"
    class_name = "GraniteForCausalLM"
    special_tokens = (1, 2, None)
    defaults = {"max_position_embeddings": 2048, **dict.fromkeys(MULTIPLIERS, 1.0)}
    options = ("attention_bias", "mlp_bias", "rms_norm_eps", *MULTIPLIERS)
    host = GRANITEMOE


class SmolLM3(Family):
    """SmolLM3 → GraniteMoE with windows: some layers have no rope. Exact against the dense model's eager attention."""

    model_type = "smollm3"
    class_name = "SmolLM3ForCausalLM"
    special_tokens = (128000, 128001, 128004)
    defaults = {
        "max_position_embeddings": 32768,
        "no_rope_layer_interval": 4,
        "no_rope_layers": None,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    }
    rope_theta = 2_000_000.0
    options = ("attention_bias", "layer_types", "mlp_bias", "no_rope_layers", "rms_norm_eps", "sliding_window")

    def fill_defaults(self, values: dict[str, Any]) -> None:
        """Derive the layers that have a rope, and those that have a window."""
        layers, interval = range(values["num_hidden_layers"]), values["no_rope_layer_interval"]
        if values["no_rope_layers"] is None:
            values["no_rope_layers"] = [int((layer + 1) % interval != 0) for layer in layers]
        windows = values["use_sliding_window"] and values["sliding_window"] is not None
        if values["layer_types"] is None:
            values["layer_types"] = [SLIDING if windows and not rope else FULL for rope in values["no_rope_layers"]]
        if not windows:
            values["sliding_window"] = None

    def translations(self, architecture: Architecture) -> list[Translation]:
        unused = architecture.max_position_embeddings
        carried = architecture.with_options(sliding_window=architecture.options["sliding_window"] or unused)
        return [Translation(GRANITEMOE_SWA, carried, self.unchanged(architecture) | sinks(architecture))]
