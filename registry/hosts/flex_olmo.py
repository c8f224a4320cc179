"""FlexOlmo: norms after attention and MLP, so that its router is applied to the residual stream itself."""

from typing import Any

from registry.hosts.architecture import Architecture
from registry.hosts.host import NORM_TOPK_PROB, ContextAttention, Host, PerExpert, decoder_config


def _config(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
    return decoder_config(architecture) | {
        "attention_bias": architecture.options["attention_bias"],
        NORM_TOPK_PROB: True,
        "num_experts": experts,
        "num_experts_per_tok": top_k,
    }


FLEX_OLMO = Host(
    model_type="flex_olmo",
    class_name="FlexOlmoForCausalLM",
    gate="mlp.gate.weight",
    experts=PerExpert("mlp.experts.{expert}.{projection}.weight"),
    config=_config,
    obeys_norm_topk_prob=True,
    context=ContextAttention(query_key_norm="all heads", norm_after=True),
)
