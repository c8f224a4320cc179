"""Mixtral: softmax over the chosen k, so that at k = 1 the one weight is exactly 1."""

from typing import Any

from registry.architecture import Architecture
from registry.hosts.host import Host, decoder_config


def _config(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
    return decoder_config(architecture) | {
        "intermediate_size": architecture.intermediate_size,
        "num_experts_per_tok": top_k,
        "num_local_experts": experts,
        "router_jitter_noise": 0.0,
        "sliding_window": architecture.sliding_window,
    }


_EXPERT = "model.layers.{layer}.block_sparse_moe.experts.{expert}."

MIXTRAL = Host(
    model_type="mixtral",
    class_name="MixtralForCausalLM",
    gate="model.layers.{layer}.block_sparse_moe.gate.weight",
    expert={
        "gate_proj": _EXPERT + "w1.weight",
        "up_proj": _EXPERT + "w3.weight",
        "down_proj": _EXPERT + "w2.weight",
    },
    config=_config,
)
