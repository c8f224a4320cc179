"""SmolLM3 → GraniteMoE with windows: some layers have no rope. Exact against the dense model's eager attention."""

from typing import Any

from registry.families.family import Family, Translation
from registry.families.rope import FULL, SLIDING
from registry.hosts.architecture import Architecture
from registry.hosts.granitemoe_swa import GRANITEMOE_SWA, sinks


class SmolLM3(Family):
    """SmolLM3."""

    model_type = "smollm3"
    class_name = "SmolLM3ForCausalLM"
    special_tokens = (128000, 128001, 128004)
    defaults = {
        "attention_bias": False,
        "layer_types": None,
        "max_position_embeddings": 32768,
        "mlp_bias": False,
        "no_rope_layer_interval": 4,
        "no_rope_layers": None,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "sliding_window": None,
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
        """Return GraniteMoE with windows."""
        unused = architecture.max_position_embeddings
        carried = architecture.with_options(sliding_window=architecture.options["sliding_window"] or unused)
        return [Translation(GRANITEMOE_SWA, carried, self.unchanged(architecture) | sinks(architecture))]


SMOLLM3 = SmolLM3()
