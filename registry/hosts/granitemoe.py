"""GraniteMoE: attention biases and multipliers."""

from typing import Any

from registry.hosts.architecture import Architecture
from registry.hosts.host import ContextAttention, Fused, Host, decoder_config

MULTIPLIERS = ("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier")


def multipliers(architecture: Architecture) -> dict[str, Any]:
    """Return Granite's four multipliers, with neutral values for those that a family lacks."""
    neutral = dict.fromkeys(MULTIPLIERS, 1.0) | {"attention_multiplier": architecture.head_dim**-0.5}
    return {name: architecture.options.get(name, neutral[name]) for name in MULTIPLIERS}


def _config(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
    return decoder_config(architecture) | {
        "attention_bias": architecture.options.get("attention_bias", False),
        "num_experts_per_tok": top_k,
        "num_local_experts": experts,
        **multipliers(architecture),
    }


GRANITEMOE = Host(
    model_type="granitemoe",
    class_name="GraniteMoeForCausalLM",
    gate="block_sparse_moe.router.layer.weight",
    experts=Fused("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"),
    config=_config,
    context=ContextAttention(lambda architecture: multipliers(architecture)["attention_multiplier"], fixed_heads=True),
)
