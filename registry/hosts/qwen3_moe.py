"""Qwen3-MoE, with `norm_topk_prob` so that the chosen weights sum to 1."""

from typing import Any

from registry.architecture import Architecture
from registry.hosts.host import Host, decoder_config


def _config(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
    return decoder_config(architecture) | {
        "attention_bias": architecture.attention_bias,
        "decoder_sparse_step": 1,
        "intermediate_size": architecture.intermediate_size,
        "mlp_only_layers": [],
        "moe_intermediate_size": architecture.intermediate_size,
        "norm_topk_prob": True,
        "num_experts": experts,  # read by transformers 4 and by other runtimes; transformers 5 reads the next line
        "num_local_experts": experts,
        "num_experts_per_tok": top_k,
        "sliding_window": None,
        "use_sliding_window": False,
    }


_EXPERT = "model.layers.{layer}.mlp.experts.{expert}."

QWEN3_MOE = Host(
    model_type="qwen3_moe",
    class_name="Qwen3MoeForCausalLM",
    gate="model.layers.{layer}.mlp.gate.weight",
    expert={projection: _EXPERT + f"{projection}.weight" for projection in ("gate_proj", "up_proj", "down_proj")},
    config=_config,
)
