"""OLMo 2 and 3 → FlexOlmo, bit for bit."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from registry.families.family import Family, Shapes, Translation, attention_shapes, norm_shapes
from registry.families.rope import FULL, SLIDING, fill_layer_types, nested_rope_parameters
from registry.hosts.architecture import Architecture
from registry.hosts.native import FLEX_OLMO


class Olmo2(Family):
    """OLMo 2: norms follow attention and MLP, so the MLP input is the residual stream."""

    model_type = "olmo2"
    class_name = "Olmo2ForCausalLM"
    special_tokens = (None, 50279, 1)
    defaults = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}
    options: ClassVar[tuple[str, ...]] = ("attention_bias", "rms_norm_eps")
    host = FLEX_OLMO
    attention_norm = None
    mlp_norm = None

    def trunk_layer(self, architecture: Architecture) -> Shapes:
        """Return the shapes of one layer's trunk tensors, including the norms over all queries and all keys."""
        heads, keys, size = architecture.num_attention_heads, architecture.num_key_value_heads, architecture.head_dim
        return {
            **attention_shapes(architecture, bias="qkvo" if architecture.options["attention_bias"] else ""),
            **norm_shapes(architecture, "self_attn.q_norm", size=heads * size),
            **norm_shapes(architecture, "self_attn.k_norm", size=keys * size),
            **norm_shapes(architecture, "post_attention_layernorm", "post_feedforward_layernorm"),
        }


class Olmo3(Olmo2):
    """OLMo 3, up to the sliding window, which FlexOlmo lacks: the context ends there."""

    model_type = "olmo3"
    class_name = "Olmo3ForCausalLM"
    defaults = {**Olmo2.defaults, "sliding_window": 4096}
    rope_theta = 500_000.0
    options = ("attention_bias", "layer_types", "rms_norm_eps", "sliding_window")

    def fill_defaults(self, values: dict[str, Any]) -> None:
        """Derive the layers that have a window: all but every fourth."""
        fill_layer_types(values, 4)

    def rope(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return nested_rope_parameters(values, self.rope_theta, self.rope_theta)

    def refusal(self, architecture: Architecture) -> str | None:
        ropes = {kind: architecture.rope_parameters[kind] for kind in architecture.options["layer_types"]}
        if len(ropes) > 1 and ropes[FULL] != ropes[SLIDING]:
            return "its full and its sliding layers have different ropes, and flex_olmo has one for all"
        return super().refusal(architecture)

    def translations(self, architecture: Architecture) -> list[Translation]:
        """Return FlexOlmo, with the window as its context if layers have one."""
        types, context = architecture.options["layer_types"], architecture.max_position_embeddings
        window = architecture.options["sliding_window"] if SLIDING in types else None
        limit = min(context, window or context)
        carried = replace(
            architecture, max_position_embeddings=limit, rope_parameters=architecture.rope_parameters[types[0]]
        )
        cut = f"flex_olmo has no sliding window: the context ends at {limit:,} tokens (the experts' is {context:,})"
        notes = (cut,) if limit < context else ()
        return [Translation(FLEX_OLMO, carried, self.unchanged(architecture), notes)]
