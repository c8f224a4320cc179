"""Qwen2-MoE: biases on q, k and v, windows in some layers, and a shared expert, which is set to return zero."""

from typing import Any

from registry.hosts.architecture import Architecture
from registry.hosts.host import LAYERS, ContextAttention, Host, PerExpert, qwen_moe_config
from registry.hosts.tensors import Constant

SHARED_SIZE = 8
"""Width of the shared expert: the smallest that every runtime accepts."""


def _config(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
    windows = "sliding_attention" in architecture.options["layer_types"]
    return qwen_moe_config(architecture, experts, top_k) | {
        "layer_types": architecture.options["layer_types"],
        "max_window_layers": architecture.options["layer_types"].count("full_attention"),
        "qkv_bias": True,
        "shared_expert_intermediate_size": SHARED_SIZE,
        "sliding_window": architecture.options["sliding_window"] if windows else None,
        "use_sliding_window": windows,
    }


def shared_expert(architecture: Architecture) -> dict[str, Constant]:
    """Return the shared experts: their down projection is zero; their gate is not, since runtimes divide by it."""
    hidden = architecture.hidden_size
    shapes = {
        "gate_proj": ((SHARED_SIZE, hidden), 0.0),
        "up_proj": ((SHARED_SIZE, hidden), 0.0),
        "down_proj": ((hidden, SHARED_SIZE), 0.0),
    }
    tensors = {}
    for layer in range(architecture.num_hidden_layers):
        below = f"{LAYERS}.{layer}.mlp.shared_expert"
        for projection, (shape, value) in shapes.items():
            tensors[f"{below}.{projection}.weight"] = Constant(shape, value)
        tensors[f"{below}_gate.weight"] = Constant((1, hidden), 2.0**-7)
    return tensors


QWEN2_MOE = Host(
    model_type="qwen2_moe",
    class_name="Qwen2MoeForCausalLM",
    gate="mlp.gate.weight",
    experts=PerExpert("mlp.experts.{expert}.{projection}.weight"),
    config=_config,
    obeys_norm_topk_prob=True,
    context=ContextAttention(fixed_heads=True),
)
