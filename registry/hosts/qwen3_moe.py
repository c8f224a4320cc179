"""Qwen3-MoE: query and key norms, optional attention biases, the same attention in all layers."""

from typing import Any

from registry.hosts.architecture import Architecture
from registry.hosts.host import ContextAttention, Host, PerExpert, qwen_moe_config


def _config(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
    return qwen_moe_config(architecture, experts, top_k) | {
        "attention_bias": architecture.options["attention_bias"],
        "sliding_window": None,
        "use_sliding_window": False,
    }


QWEN3_MOE = Host(
    model_type="qwen3_moe",
    class_name="Qwen3MoeForCausalLM",
    gate="mlp.gate.weight",
    experts=PerExpert("mlp.experts.{expert}.{projection}.weight"),
    config=_config,
    obeys_norm_topk_prob=True,
    context=ContextAttention(query_key_norm="each head"),
)
