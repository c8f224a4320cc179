"""Qwen 2 and 3 → the mixtures of their own lineage, bit for bit."""

from collections.abc import Mapping
from typing import Any, ClassVar

from registry.families.family import Family, Shapes, Translation, attention_shapes, norm_shapes
from registry.families.rope import FULL, SLIDING
from registry.hosts import Constant
from registry.hosts.architecture import Architecture
from registry.hosts.native import GRANITEMOE, MELLUM, QWEN2_MOE, QWEN3_MOE, shared_expert


class _Qwen(Family):
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "use_sliding_window": False,
    }

    def fill_defaults(self, values: dict[str, Any]) -> None:
        """Derive the layers that have a window: those from `max_window_layers` on."""
        if not values["use_sliding_window"]:
            values["sliding_window"] = None
        if values["layer_types"] is None:
            first = values["num_hidden_layers"] if values["sliding_window"] is None else values["max_window_layers"]
            values["layer_types"] = [SLIDING if i >= first else FULL for i in range(values["num_hidden_layers"])]


class Qwen2(_Qwen):
    """Qwen2 and Qwen2.5 → Qwen2-MoE, or on request GraniteMoE (without windows): biases on q, k and v."""

    model_type = "qwen2"
    class_name = "Qwen2ForCausalLM"
    options = ("layer_types", "rms_norm_eps", "sliding_window")

    def trunk_layer(self, architecture: Architecture) -> Shapes:
        return attention_shapes(architecture, bias="qkv") | norm_shapes(architecture)

    def translations(self, architecture: Architecture) -> list[Translation]:
        """Return Qwen2-MoE with a shared expert that gives zero; GraniteMoE with a bias of zero on o."""
        unchanged, windows = self.unchanged(architecture), SLIDING in architecture.options["layer_types"]
        notes = ("transformers 4 knows one window for all layers and gives it to every one",) if windows else ()
        translations = [Translation(QWEN2_MOE, architecture, unchanged | shared_expert(architecture), notes)]
        if not windows:
            zeros = {
                self.tensor_name(layer, "self_attn.o_proj.bias"): Constant((architecture.hidden_size,), 0.0)
                for layer in range(architecture.num_hidden_layers)
            }
            translations.append(
                Translation(GRANITEMOE, architecture.with_options(attention_bias=True), unchanged | zeros)
            )
        return translations


class Qwen3(_Qwen):
    """Qwen3's dense models → Qwen3-MoE, attention biases included; with a window by layer → Mellum."""

    model_type = "qwen3"
    class_name = "Qwen3ForCausalLM"
    defaults = {**_Qwen.defaults, "head_dim": 128}
    options = ("attention_bias", "layer_types", "rms_norm_eps", "sliding_window")
    has_head_norms = True

    def translations(self, architecture: Architecture) -> list[Translation]:
        host = MELLUM if SLIDING in architecture.options["layer_types"] else QWEN3_MOE
        return [Translation(host, architecture, self.unchanged(architecture))]
