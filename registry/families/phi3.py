"""Phi-3 → Mixtral: fused projections are split; a partial rope becomes a full one whose idle pairs do not turn."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from registry.families.family import Attention, Family, Shapes, Translation, norm_shapes
from registry.hosts import Constant, Projections, RowSelection, Trunk
from registry.hosts.architecture import Architecture
from registry.hosts.native import MIXTRAL

_STILL = 1e30
"""Divisor of a frequency that stops its rotation: below 1e-24 of a radian at the longest context."""


class Phi3(Family):
    """Phi-3, Phi-3.5, Phi-4 and Phi-4-mini."""

    model_type = "phi3"
    class_name = "Phi3ForCausalLM"
    special_tokens = (1, 32000, 32000)
    defaults = {
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "partial_rotary_factor": 1.0,
        "rms_norm_eps": 1e-5,
    }
    options = ("rms_norm_eps", "sliding_window")
    free_head_dim = False

    def rope(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rope's parameters: `su` and `yarn` are old names of longrope."""
        rope = super().rope(values)
        if rope["rope_type"] in ("su", "yarn", "longrope"):
            rope["rope_type"] = "longrope"
            rope["original_max_position_embeddings"] = values["original_max_position_embeddings"]
        return rope

    def trunk_layer(self, architecture: Architecture) -> Shapes:
        """Return the shapes of one layer's trunk tensors: q, k and v are one tensor."""
        hidden, size = architecture.hidden_size, architecture.head_dim
        heads, pairs = architecture.num_attention_heads, architecture.num_key_value_heads
        return {
            "self_attn.qkv_proj.weight": ((heads + 2 * pairs) * size, hidden),
            "self_attn.o_proj.weight": (hidden, heads * size),
            **norm_shapes(architecture),
        }

    def mlp_layer(self, architecture: Architecture) -> Shapes:
        """Return the shapes of one layer's MLP tensors: gate and up are one tensor."""
        hidden, inner = architecture.hidden_size, architecture.intermediate_size
        return {"mlp.gate_up_proj.weight": (2 * inner, hidden), "mlp.down_proj.weight": (hidden, inner)}

    def projections(self, layer: int, architecture: Architecture) -> Projections:
        hidden, inner = architecture.hidden_size, architecture.intermediate_size
        fused = self.tensor_name(layer, "mlp.gate_up_proj.weight")
        return {
            "gate_proj": (RowSelection(fused, range(inner)), (inner, hidden)),
            "up_proj": (RowSelection(fused, range(inner, 2 * inner)), (inner, hidden)),
            "down_proj": (RowSelection(self.tensor_name(layer, "mlp.down_proj.weight")), (hidden, inner)),
        }

    def attention(self, architecture: Architecture) -> Attention:
        """Return the linear modules of each layer's attention: queries, keys and values are one module."""
        size, heads, pairs = architecture.head_dim, architecture.num_attention_heads, architecture.num_key_value_heads
        fused = "self_attn.qkv_proj"
        return Attention((fused,), values=fused, value_rows=range((heads + pairs) * size, (heads + 2 * pairs) * size))

    def refusal(self, architecture: Architecture) -> str | None:
        rope = architecture.rope_parameters
        if rope["rope_type"] not in ("default", "longrope"):
            return f"its rope is {rope['rope_type']!r}, which Phi-3 does not have"
        turning = architecture.head_dim * rope["partial_rotary_factor"]
        if not 0 < turning <= architecture.head_dim or turning % 2:
            return f"its partial_rotary_factor of {rope['partial_rotary_factor']} leaves half a pair"
        return None

    def translations(self, architecture: Architecture) -> list[Translation]:
        size, hidden = architecture.head_dim, architecture.hidden_size
        queries = architecture.num_attention_heads * size
        keys = architecture.num_key_value_heads * size
        turning = int(size * architecture.rope_parameters["partial_rotary_factor"])
        order = _head_order(size, turning)
        idle = 1 / _attention_factor(architecture)  # Mixtral's rope scales all channels, Phi-3's only the rotating ones
        trunk: dict[str, Trunk | Constant] = {}
        for name, tensor in self.unchanged(architecture).items():
            if not name.endswith("self_attn.qkv_proj.weight"):
                trunk[name] = tensor
                continue
            for letter, first, count in (("q", 0, queries), ("k", queries, keys), ("v", queries + keys, keys)):
                rows: range | tuple[int, ...] = range(first, first + count)
                scales = None
                if turning < size and letter != "v":
                    rows = tuple(first + head + channel for head in range(0, count, size) for channel in order)
                    scales = tuple(1.0 if channel < turning else idle for channel in order) * (count // size)
                trunk[name.replace("qkv_proj", f"{letter}_proj")] = Trunk(
                    (count, hidden), RowSelection(name, rows), scales=scales
                )
        rope = _full_rope(architecture, turning)
        return [Translation(MIXTRAL, replace(architecture, rope_parameters=rope), trunk)]


def _head_order(size: int, turning: int) -> tuple[int, ...]:
    """Return the order of a head's channels: in both halves the rotating pairs first, then the idle ones."""
    half, idle = turning // 2, (size - turning) // 2
    first = [*range(half), *range(turning, turning + idle)]
    second = [*range(half, turning), *range(turning + idle, size)]
    return (*first, *second)


def _full_rope(architecture: Architecture, turning: int) -> dict[str, Any]:
    """Return the parameters of a rope over full heads that rotates the first `turning` channels as Phi-3 does."""
    rope = dict(architecture.rope_parameters)
    del rope["partial_rotary_factor"]
    size, theta = architecture.head_dim, rope["rope_theta"]
    if rope["rope_type"] == "longrope":
        rope["attention_factor"] = _attention_factor(architecture)
    if turning == size:
        return rope
    # inv_freq_i = 1 / (factor_i · θ^(2i/size)) must equal 1 / (own_i · θ^(2i/turning))
    grow = [theta ** (2 * i / turning - 2 * i / size) for i in range(turning // 2)]
    idle = [_STILL] * ((size - turning) // 2)
    own = {key: rope.get(key) or [1.0] * (turning // 2) for key in ("short_factor", "long_factor")}
    tables = {key: [f * g for f, g in zip(factors, grow, strict=True)] + idle for key, factors in own.items()}
    plain = rope["rope_type"] == "default"
    return {
        "attention_factor": _attention_factor(architecture),
        "original_max_position_embeddings": (
            architecture.max_position_embeddings if plain else rope["original_max_position_embeddings"]
        ),
        "rope_theta": theta,
        "rope_type": "longrope",
        **tables,
    }


def _attention_factor(architecture: Architecture) -> float:
    """Return the factor of longrope on queries and keys, as transformers computes it."""
    rope = architecture.rope_parameters
    if rope["rope_type"] == "default":
        return 1.0
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    original = rope["original_max_position_embeddings"]
    factor = rope.get("factor") or architecture.max_position_embeddings / original
    return 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original))
