"""GraniteMoE with windows: layers with and without a rope, and attention sinks, set to receive no attention."""

from typing import Any

from registry.hosts.architecture import Architecture
from registry.hosts.granitemoe import multipliers
from registry.hosts.host import LAYERS, ContextAttention, Fused, Host, decoder_config
from registry.hosts.tensors import Constant

NO_SINK = -1e4
"""A sink's logit whose softmax weight is exactly 0 in every dtype."""


def _config(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
    theta = architecture.rope_parameters["rope_theta"]
    return decoder_config(architecture) | {
        "attention_bias": architecture.options["attention_bias"],
        "layer_rope_theta": [theta if rope else 0 for rope in architecture.options["no_rope_layers"]],
        "layer_types": architecture.options["layer_types"],
        "num_experts_per_tok": top_k,
        "num_local_experts": experts,
        "shared_intermediate_size": 0,
        "sliding_window": architecture.options["sliding_window"],
        **multipliers(architecture),
    }


def sinks(architecture: Architecture) -> dict[str, Constant]:
    """Return the sinks of every layer."""
    return {
        f"{LAYERS}.{layer}.self_attn.sinks": Constant((architecture.num_attention_heads,), NO_SINK)
        for layer in range(architecture.num_hidden_layers)
    }


GRANITEMOE_SWA = Host(
    model_type="granitemoe_swa",
    class_name="GraniteMoeSWAForCausalLM",
    gate="block_sparse_moe.router.weight",
    experts=Fused("block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj"),
    config=_config,
    context=ContextAttention(lambda architecture: multipliers(architecture)["attention_multiplier"]),
)
