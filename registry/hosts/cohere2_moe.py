"""Cohere2-MoE: parallel attention and MLP; a rope only in layers with a window."""

from typing import Any

from registry.hosts.architecture import Architecture
from registry.hosts.host import Host, PerExpert, decoder_config


def _config(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
    return decoder_config(architecture) | {
        "attention_bias": architecture.options["attention_bias"],
        "expert_selection_fn": "softmax",
        "layer_norm_eps": architecture.options["layer_norm_eps"],
        "layer_types": architecture.options["layer_types"],
        "logit_scale": architecture.options["logit_scale"],
        "mlp_layer_types": ["sparse"] * architecture.num_hidden_layers,
        "norm_topk_prob": True,
        "num_experts": experts,
        "num_experts_per_tok": top_k,
        "num_shared_experts": 0,
        "rms_norm_eps": None,
        "sliding_window": architecture.options["sliding_window"],
    }


COHERE2_MOE = Host(
    model_type="cohere2_moe",
    class_name="Cohere2MoeForCausalLM",
    gate="mlp.gate.weight",
    experts=PerExpert("mlp.experts.{expert}.{projection}.weight"),
    config=_config,
)
