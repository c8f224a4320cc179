"""Mixtral: softmax over the chosen k, so that at k = 1 the one weight is exactly 1."""

from typing import Any

from registry.hosts.architecture import Architecture
from registry.hosts.host import ContextAttention, Host, PerExpert, decoder_config


def _config(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
    return decoder_config(architecture) | {
        "num_experts_per_tok": top_k,
        "num_local_experts": experts,
        "router_jitter_noise": 0.0,
        "sliding_window": architecture.options.get("sliding_window"),
    }


MIXTRAL = Host(
    model_type="mixtral",
    class_name="MixtralForCausalLM",
    gate="block_sparse_moe.gate.weight",
    experts=PerExpert(
        "block_sparse_moe.experts.{expert}.{projection}.weight",
        {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"},
    ),
    config=_config,
    context=ContextAttention(),
)
