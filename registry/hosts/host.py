"""A host: the tensor names and the config.json of a native mixture-of-experts architecture."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from registry.hosts.architecture import Architecture
from registry.hosts.tensors import Experts, RowSelection

LAYERS = "model.layers"

NORM_TOPK_PROB = "norm_topk_prob"
"""Key of config.json in the Qwen lineage: whether the weights of a token's experts are made to add up to 1."""

Projections = Mapping[str, tuple[RowSelection, tuple[int, ...]]]
"""The matrices of one layer's MLP: name → (their rows, their shape)."""


@dataclass(frozen=True)
class PerExpert:
    """A layout with one tensor for each expert and matrix.

    Attributes:
        pattern: its name below the layer, with `{expert}` and `{projection}`.
        names: the host's own names of projections.
    """

    pattern: str
    names: Mapping[str, str] = field(default_factory=dict)

    def tensors(self, count: int, projections: Projections) -> Iterator[tuple[str, Experts]]:
        """Yield (name below the layer, tensor) for `count` experts."""
        for expert in range(count):
            for projection, (rows, shape) in projections.items():
                name = self.pattern.format(expert=expert, projection=self.names.get(projection, projection))
                yield name, Experts(shape, ((expert, rows),))


@dataclass(frozen=True)
class Fused:
    """A layout with two tensors a layer: gate above up, of shape (E, 2I, H), and down, of shape (E, H, I)."""

    gate_up: str
    down: str

    def tensors(self, count: int, projections: Projections) -> Iterator[tuple[str, Experts]]:
        """Yield (name below the layer, tensor) for `count` experts."""
        for name, parts in ((self.gate_up, ("gate_proj", "up_proj")), (self.down, ("down_proj",))):
            (height, width) = projections[parts[0]][1]
            rows = tuple((expert, projections[part][0]) for expert in range(count) for part in parts)
            yield name, Experts((count, height * len(parts), width), rows)


@dataclass(frozen=True)
class ContextAttention:
    """A host's attention, as far as a context layer depends on it (`registry.hosts.context`).

    Attributes:
        scale: what its scores are multiplied by, from the architecture.
        query_key_norm: what a norm of queries and keys goes over: `each head`, `all heads`, or empty without one.
        norm_after: norms follow attention and MLP, which read the residual stream itself.
        fixed_heads: older programs derive the size of its heads from the hidden size, which the layer changes.
    """

    scale: Callable[[Architecture], float] = lambda architecture: architecture.head_dim**-0.5
    query_key_norm: str = ""
    norm_after: bool = False
    fixed_heads: bool = False


@dataclass(frozen=True)
class Host:
    """The tensor names and the config.json of a composition.

    Attributes:
        model_type: the `model_type` written to config.json.
        class_name: the transformers class, written to `architectures`.
        gate: name of a layer's router, below the layer.
        layers: prefix of its layers in tensor names.
        dense_config: selects the keys that are copied from the members' own config.json; a native host copies none.
        files: other files of its folder, by name.
        context: its attention, where it carries a context layer; None where it does not.
        gate_bias: name of a router's bias, below the layer; empty where routers have none.
        obeys_norm_topk_prob: its class reads this key; others always make the weights of a token's experts add up to 1.
    """

    model_type: str
    class_name: str
    config: Callable[[Architecture, int, int], dict[str, Any]]  # of (architecture, experts, experts per token)
    gate: str = "mlp.gate.weight"
    experts: PerExpert | Fused = PerExpert("mlp.experts.{expert}.{projection}.weight")
    layers: str = LAYERS
    dense_config: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda config: {}
    files: Mapping[str, bytes] = field(default_factory=dict)
    context: ContextAttention | None = None
    gate_bias: str = ""
    obeys_norm_topk_prob: bool = False

    def tensor_name(self, layer: int, name: str) -> str:
        """Return the full name of a tensor of a layer."""
        return f"{self.layers}.{layer}.{name}"


class DenseClass(Protocol):
    """A dense class of transformers, which a `Family` names; `layers` is the module of its layers."""

    model_type: ClassVar[str]
    class_name: ClassVar[str]
    layers: ClassVar[str]


def decoder_config(architecture: Architecture, top_k: int, *options: str, **own: Any) -> dict[str, Any]:
    """Return the keys of config.json that all hosts share, under the names of both transformers 4 and 5.

    Added are some `options` of the architecture and a host's `own` keys.
    """
    sizes = {name: value for name, value in vars(architecture).items() if name not in ("options", "rope_parameters")}
    everywhere = [key for key in ("rms_norm_eps", "context_layers") if key in architecture.options]
    return {
        **sizes,
        **rope_config(architecture.rope_parameters),
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "num_experts_per_tok": top_k,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.0,
        "use_cache": True,
        **{key: architecture.options[key] for key in (*everywhere, *options)},
        **own,
    }


def rope_config(rope_parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rope's keys in config.json: `rope_parameters` (transformers 5), `rope_theta`, `rope_scaling` (4)."""
    scaling = dict(rope_parameters)
    theta = scaling.pop("rope_theta")
    config = {
        "rope_parameters": dict(rope_parameters),
        "rope_scaling": None if scaling.get("rope_type", "default") == "default" else scaling,
        "rope_theta": theta,
    }
    if scaling.get("rope_type") == "longrope":  # transformers 4 switches between short and long by this key
        config["original_max_position_embeddings"] = scaling["original_max_position_embeddings"]
    return config


def dense_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that are copied from a dense model's config.json."""
    dropped = ("_name_or_path", "transformers_version", "auto_map", "quantization_config")
    return {key: value for key, value in config.items() if key not in dropped}
