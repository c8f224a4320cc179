"""Mellum: Qwen3's layers, some with a window."""

from typing import Any

from registry.hosts.architecture import Architecture
from registry.hosts.host import ContextAttention, Host, PerExpert, qwen_moe_config


def _config(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
    config = qwen_moe_config(architecture, experts, top_k)
    for key in ("rope_scaling", "rope_theta"):
        del config[key]  # it has one rope for each kind of layer
    types = architecture.options["layer_types"]
    return config | {
        "attention_bias": architecture.options["attention_bias"],
        "layer_types": types,
        "mlp_layer_types": ["sparse"] * architecture.num_hidden_layers,
        "rope_parameters": dict.fromkeys(("full_attention", "sliding_attention"), architecture.rope_parameters),
        "sliding_window": architecture.options["sliding_window"],
    }


MELLUM = Host(
    model_type="mellum",
    class_name="MellumForCausalLM",
    gate="mlp.gate.weight",
    experts=PerExpert("mlp.experts.{expert}.{projection}.weight"),
    config=_config,
    obeys_norm_topk_prob=True,
    context=ContextAttention(query_key_norm="each head"),
)
