"""OLMo 3 → FlexOlmo, bit for bit up to the sliding window, which FlexOlmo lacks: the context ends there."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from registry.families.family import Translation
from registry.families.olmo2 import Olmo2
from registry.families.rope import FULL, SLIDING, every, nested_rope_parameters
from registry.hosts.architecture import Architecture
from registry.hosts.flex_olmo import FLEX_OLMO


class Olmo3(Olmo2):
    """OLMo 3."""

    model_type = "olmo3"
    class_name = "Olmo3ForCausalLM"
    defaults = {**Olmo2.defaults, "layer_types": None, "sliding_window": 4096}
    rope_theta = 500_000.0
    options = ("attention_bias", "layer_types", "rms_norm_eps", "sliding_window")

    def fill_defaults(self, values: dict[str, Any]) -> None:
        """Derive the layers that have a window: all but every fourth."""
        if values["layer_types"] is None:
            values["layer_types"] = every(4, FULL, SLIDING, values["num_hidden_layers"])

    def rope(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rope's parameters of full and of sliding layers."""
        return nested_rope_parameters(values, self.rope_theta, self.rope_theta)

    def refusal(self, architecture: Architecture) -> str | None:
        """Return why FlexOlmo does not carry this model, or None if it does."""
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


OLMO3 = Olmo3()
