"""A dense family: its tensors, where its MLP input is, and the host that carries it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from registry.architecture import Architecture
from registry.hosts import Host

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
"""The three matrices of a gated MLP, in the names that the dense families use."""

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Family:
    """One dense model type.

    Attributes:
        model_type: the `model_type` of its config.json.
        host: the native architecture that carries it.
        trunk_layer: shapes of one layer's trunk tensors, by their name below `model.layers.N.`.
        refusal: why a configuration of this family is not carried exactly, or None where it is.
        mlp_input_norm: the RMSNorm (name below `model.layers.N.`) whose output is the MLP input; its weight bounds it.
    """

    model_type: str
    host: Host
    trunk_layer: Callable[[Architecture], Shapes]
    refusal: Callable[[Any], str | None]
    mlp_input_norm: str = "post_attention_layernorm.weight"

    def trunk_shapes(self, architecture: Architecture) -> Shapes:
        """Return the shape of every trunk tensor."""
        hidden, vocabulary = architecture.hidden_size, architecture.vocab_size
        shapes: Shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
        if not architecture.tie_word_embeddings:
            shapes["lm_head.weight"] = (vocabulary, hidden)
        for layer in range(architecture.num_hidden_layers):
            for name, shape in self.trunk_layer(architecture).items():
                shapes[f"model.layers.{layer}.{name}"] = shape
        return shapes

    def mlp_shapes(self, architecture: Architecture) -> Shapes:
        """Return the shape of every MLP tensor."""
        hidden, inner = architecture.hidden_size, architecture.intermediate_size
        return {
            self.mlp_name(layer, projection): (hidden, inner) if projection == "down_proj" else (inner, hidden)
            for layer in range(architecture.num_hidden_layers)
            for projection in PROJECTIONS
        }

    def mlp_name(self, layer: int, projection: str) -> str:
        """Return the dense name of one MLP matrix."""
        return f"model.layers.{layer}.mlp.{projection}.weight"

    def mlp_input_bound(self, layer: int) -> str:
        """Return the name of the norm weight that bounds the MLP input of `layer`."""
        return f"model.layers.{layer}.{self.mlp_input_norm}"

    def mlps(self, model: Any) -> Iterator[Any]:
        """Yield the MLP module of each layer of a loaded model; its first positional input is the MLP input."""
        for layer in model.model.layers:
            yield layer.mlp


def attention_shapes(architecture: Architecture, *, bias: bool = False) -> Shapes:
    """Return the shapes of one layer's q, k, v and o projections and of its two norms, as Llama names them."""
    hidden = architecture.hidden_size
    queries = architecture.num_attention_heads * architecture.head_dim
    keys = architecture.num_key_value_heads * architecture.head_dim
    shapes: Shapes = {
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if bias:
        shapes |= {
            "self_attn.q_proj.bias": (queries,),
            "self_attn.k_proj.bias": (keys,),
            "self_attn.v_proj.bias": (keys,),
            "self_attn.o_proj.bias": (hidden,),
        }
    return shapes
