"""Qwen3 → Qwen3-MoE, bit for bit: query and key norms, attention biases where there are any, no per-layer window."""

from typing import Any

from registry.architecture import Architecture
from registry.families.family import Family, Shapes, attention_shapes
from registry.hosts.qwen3_moe import QWEN3_MOE


def _trunk_layer(architecture: Architecture) -> Shapes:
    return attention_shapes(architecture, bias=architecture.attention_bias) | {
        "self_attn.q_norm.weight": (architecture.head_dim,),
        "self_attn.k_norm.weight": (architecture.head_dim,),
    }


def _refusal(config: Any) -> str | None:
    if "sliding_attention" in config.layer_types:
        return "some of its layers have a sliding window and others none, which qwen3_moe cannot hold"
    return None


QWEN3 = Family("qwen3", QWEN3_MOE, _trunk_layer, _refusal)
