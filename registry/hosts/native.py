"""Native hosts: the mixtures of transformers that carry a family, and the dense class itself.

Each has its tensors' names, the layout of its experts, and its own part of config.json.
"""

from dataclasses import replace
from typing import Any

from registry.hosts.architecture import Architecture
from registry.hosts.host import (
    LAYERS,
    ContextAttention,
    DenseClass,
    Fused,
    Host,
    PerExpert,
    decoder_config,
    dense_config,
)
from registry.hosts.tensors import Constant

MIXTRAL = Host(
    model_type="mixtral",
    class_name="MixtralForCausalLM",
    gate="block_sparse_moe.gate.weight",
    experts=PerExpert(
        "block_sparse_moe.experts.{expert}.{projection}.weight",
        {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"},
    ),
    config=lambda architecture, experts, top_k: decoder_config(
        architecture,
        top_k,
        num_local_experts=experts,
        router_jitter_noise=0.0,
        sliding_window=architecture.options.get("sliding_window"),
    ),
    context=ContextAttention(),
)
"""Mixtral: softmax over the chosen k, so that at k = 1 the one weight is exactly 1."""


MULTIPLIERS = ("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier")


def multipliers(architecture: Architecture) -> dict[str, Any]:
    """Return Granite's four multipliers, with neutral values for those that a family lacks."""
    neutral = dict.fromkeys(MULTIPLIERS, 1.0) | {"attention_multiplier": architecture.head_dim**-0.5}
    return {name: architecture.options.get(name, neutral[name]) for name in MULTIPLIERS}


GRANITEMOE = Host(
    model_type="granitemoe",
    class_name="GraniteMoeForCausalLM",
    gate="block_sparse_moe.router.layer.weight",
    experts=Fused("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"),
    config=lambda architecture, experts, top_k: decoder_config(
        architecture,
        top_k,
        attention_bias=architecture.options.get("attention_bias", False),
        num_local_experts=experts,
        **multipliers(architecture),
    ),
    context=ContextAttention(lambda architecture: multipliers(architecture)["attention_multiplier"], fixed_heads=True),
)
"""GraniteMoE: attention biases and multipliers."""


NO_SINK = -1e4
"""A sink's logit whose softmax weight is exactly 0 in every dtype."""


def _granitemoe_swa(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
    theta = architecture.rope_parameters["rope_theta"]
    return decoder_config(
        architecture,
        top_k,
        *("attention_bias", "layer_types", "sliding_window"),
        layer_rope_theta=[theta if rope else 0 for rope in architecture.options["no_rope_layers"]],
        num_local_experts=experts,
        shared_intermediate_size=0,
        **multipliers(architecture),
    )


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
    config=_granitemoe_swa,
    context=ContextAttention(lambda architecture: multipliers(architecture)["attention_multiplier"]),
)
"""GraniteMoE with windows: layers with and without a rope, and attention sinks, set to receive no attention."""


SHARED_SIZE = 8
"""Width of the shared expert: the smallest that every runtime accepts."""


def _qwen_moe(architecture: Architecture, experts: int, top_k: int, *options: str, **own: Any) -> dict[str, Any]:
    """Return the keys that the hosts of the Qwen lineage share; with `norm_topk_prob` the chosen weights sum to 1."""
    return decoder_config(
        architecture,
        top_k,
        *options,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        moe_intermediate_size=architecture.intermediate_size,
        norm_topk_prob=True,
        num_experts=experts,  # read by transformers 4 and by other runtimes; transformers 5 reads the next line
        num_local_experts=experts,
        **own,
    )


def _qwen2_moe(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
    types = architecture.options["layer_types"]
    windows = "sliding_attention" in types
    return _qwen_moe(
        architecture,
        experts,
        top_k,
        "layer_types",
        max_window_layers=types.count("full_attention"),
        qkv_bias=True,
        shared_expert_intermediate_size=SHARED_SIZE,
        sliding_window=architecture.options["sliding_window"] if windows else None,
        use_sliding_window=windows,
    )


def shared_expert(architecture: Architecture) -> dict[str, Constant]:
    """Return the shared experts: their down projection is zero; their gate is not, since runtimes divide by it."""
    hidden, tensors = architecture.hidden_size, {}
    for layer in range(architecture.num_hidden_layers):
        below = f"{LAYERS}.{layer}.mlp.shared_expert"
        for projection in ("gate_proj", "up_proj", "down_proj"):
            shape = (hidden, SHARED_SIZE) if projection == "down_proj" else (SHARED_SIZE, hidden)
            tensors[f"{below}.{projection}.weight"] = Constant(shape, 0.0)
        tensors[f"{below}_gate.weight"] = Constant((1, hidden), 2.0**-7)
    return tensors


QWEN2_MOE = Host(
    model_type="qwen2_moe",
    class_name="Qwen2MoeForCausalLM",
    config=_qwen2_moe,
    obeys_norm_topk_prob=True,
    context=ContextAttention(fixed_heads=True),
)
"""Qwen2-MoE: biases on q, k and v, windows in some layers, and a shared expert, which is set to return zero."""


QWEN3_MOE = Host(
    model_type="qwen3_moe",
    class_name="Qwen3MoeForCausalLM",
    config=lambda architecture, experts, top_k: _qwen_moe(
        architecture, experts, top_k, "attention_bias", sliding_window=None, use_sliding_window=False
    ),
    obeys_norm_topk_prob=True,
    context=ContextAttention(query_key_norm="each head"),
)
"""Qwen3-MoE: query and key norms, optional attention biases, the same attention in all layers."""


def _mellum(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
    config = _qwen_moe(
        architecture,
        experts,
        top_k,
        *("attention_bias", "layer_types", "sliding_window"),
        mlp_layer_types=["sparse"] * architecture.num_hidden_layers,
        rope_parameters=dict.fromkeys(("full_attention", "sliding_attention"), architecture.rope_parameters),
    )
    for key in ("rope_scaling", "rope_theta"):
        del config[key]  # it has one rope for each kind of layer
    return config


MELLUM = replace(QWEN3_MOE, model_type="mellum", class_name="MellumForCausalLM", config=_mellum)
"""Mellum: Qwen3's layers, some with a window."""


FLEX_OLMO = Host(
    model_type="flex_olmo",
    class_name="FlexOlmoForCausalLM",
    config=lambda architecture, experts, top_k: decoder_config(
        architecture, top_k, "attention_bias", norm_topk_prob=True, num_experts=experts
    ),
    obeys_norm_topk_prob=True,
    context=ContextAttention(query_key_norm="all heads", norm_after=True),
)
"""FlexOlmo: norms after attention and MLP, so that its router is applied to the residual stream itself."""


COHERE2_MOE = Host(
    model_type="cohere2_moe",
    class_name="Cohere2MoeForCausalLM",
    config=lambda architecture, experts, top_k: decoder_config(
        architecture,
        top_k,
        *("attention_bias", "layer_norm_eps", "layer_types", "logit_scale", "sliding_window"),
        expert_selection_fn="softmax",
        mlp_layer_types=["sparse"] * architecture.num_hidden_layers,
        norm_topk_prob=True,
        num_experts=experts,
        num_shared_experts=0,
        rms_norm_eps=None,
    ),
)
"""Cohere2-MoE: parallel attention and MLP; a rope only in layers with a window."""


def dense_host(dense: DenseClass) -> Host:
    """Return the dense class as the host of a composition that is one dense model, without routers."""
    return Host(
        model_type=dense.model_type,
        class_name=dense.class_name,
        gate="",
        experts=PerExpert(""),
        config=lambda architecture, experts, top_k: {"vocab_size": architecture.vocab_size},
        layers=dense.layers,
        dense_config=dense_config,
    )
