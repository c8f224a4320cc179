"""A host: the tensor names and the config.json of a native mixture-of-experts architecture."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from registry.architecture import Architecture


@dataclass(frozen=True)
class Host:
    """Where a composition's tensors go.

    Attributes:
        model_type: the `model_type` written to config.json.
        class_name: the transformers class, written to `architectures`.
        gate: name of a layer's router, with `{layer}`.
        expert: name of an expert's matrix by its dense projection, with `{layer}` and `{expert}`.
        config: the architecture's own part of config.json, from (architecture, number of experts, experts per token).
    """

    model_type: str
    class_name: str
    gate: str
    expert: dict[str, str]
    config: Callable[[Architecture, int, int], dict[str, Any]]

    def gate_name(self, layer: int) -> str:
        """Return the name of the router of `layer`, of shape (E, H)."""
        return self.gate.format(layer=layer)

    def expert_name(self, layer: int, expert: int, projection: str) -> str:
        """Return the name of one matrix of one expert; its shape is the dense one."""
        return self.expert[projection].format(layer=layer, expert=expert)


def decoder_config(architecture: Architecture) -> dict[str, Any]:
    """Return the keys that every host shares, in the spelling of transformers 4 and of 5 both."""
    rope = dict(architecture.rope_parameters)
    theta = rope.pop("rope_theta")
    return {
        "attention_dropout": 0.0,
        "head_dim": architecture.head_dim,
        "hidden_act": architecture.hidden_act,
        "hidden_size": architecture.hidden_size,
        "initializer_range": 0.02,
        "max_position_embeddings": architecture.max_position_embeddings,
        "num_attention_heads": architecture.num_attention_heads,
        "num_hidden_layers": architecture.num_hidden_layers,
        "num_key_value_heads": architecture.num_key_value_heads,
        "output_router_logits": False,
        "rms_norm_eps": architecture.rms_norm_eps,
        "rope_parameters": architecture.rope_parameters,
        "rope_scaling": None if rope.get("rope_type", "default") == "default" else rope,
        "rope_theta": theta,
        "router_aux_loss_coef": 0.0,
        "tie_word_embeddings": architecture.tie_word_embeddings,
        "use_cache": True,
        "vocab_size": architecture.vocab_size,
    }
