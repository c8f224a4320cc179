"""A dense family: its configuration, its tensors, its sites, and the hosts that carry it exactly."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from registry.families.rope import rope_parameters
from registry.families.sites import ATTENTION_INPUT, ATTENTION_OUTPUT, HEAD_INPUT, MLP_INPUT
from registry.hosts import Constant, Host, Projections, RowSelection, Trunk
from registry.hosts.architecture import Architecture
from registry.hosts.native import dense_host
from registry.hosts.remote_code import REMOTE_CODE, routed_host

TANH_GELU = "gelu_pytorch_tanh"
"""Name of Gemma's activation in configurations."""

Shapes = dict[str, tuple[int, ...]]

_COMMON = {
    "attention_bias": False,
    "head_dim": None,
    "hidden_act": "silu",
    "layer_types": None,
    "mlp_bias": False,
    "num_key_value_heads": None,
    "rms_norm_eps": 1e-6,
    "sliding_window": None,
    "tie_word_embeddings": False,
}
"""Defaults of most families."""

_REQUIRED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@dataclass(frozen=True)
class NormOutput:
    """A site whose input is the output of a norm over the hidden axis, and so bounded by the norm's weights.

    Attributes:
        norm: the norm's name below the layer; the full name for the last norm.
        offset: the constant that the norm adds to its weight.
        bias: the norm has a bias.
        centred: the last norm subtracts the mean of its input.
    """

    norm: str = "post_attention_layernorm"
    offset: float = 0.0
    bias: bool = False
    centred: bool = False


@dataclass(frozen=True)
class Attention:
    """The linear modules of a layer's attention, by their names below the layer.

    Attributes:
        inputs: the modules applied to the attention input.
        output: the module applied to the heads' outputs.
        values: the module that computes the values.
        value_rows: its rows that do, head by head; None for all.
    """

    inputs: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    output: str = "self_attn.o_proj"
    values: str = "self_attn.v_proj"
    value_rows: Sequence[int] | None = None


@dataclass(frozen=True)
class Translation:
    """A dense model in the terms of a host.

    Attributes:
        host: the native architecture.
        architecture: the model's architecture in the host's terms, from which its config.json is made.
        trunk: name in the host → source of each trunk tensor.
        notes: limitations of the result, for users.
    """

    host: Host
    architecture: Architecture
    trunk: Mapping[str, Trunk | Constant]
    notes: tuple[str, ...] = ()


class Family:
    """One dense model type; a subclass overrides its differences from Llama.

    Attributes:
        class_name: its transformers class; `model_type` is that of its config.json.
        special_tokens: ids of the tokens that begin, end and pad a text, for a config.json without them.
        defaults: transformers' defaults for keys that config.json may lack, where they are not those of most families.
        options: the keys that determine its function beside the sizes.
        layers: name of the module of its layers, and their prefix in tensor names.
        renamed: tensors whose name in its transformers class differs from that in its checkpoints.
        embedding, head: the tensors of these; a head may be tied to the embedding.
        down: the last linear module of each MLP, below the layer; all others are applied to the MLP input.
        free_head_dim: config.json may give a head size that does not divide the hidden size.
        norms: those over the hidden axis in each layer.
        has_head_norms: each layer has norms of queries and keys, head by head.
        attention_norm: the norm that each layer's attention reads; None where it reads the residual stream itself, and
            `post_attention_layernorm` and `post_feedforward_layernorm` follow attention and MLP.
        mlp_norm: the same of its MLP.
        last_norm: the norm before the head, by its full name.
        host: the one native host, which has the trunk's tensors under the same names.
        refused: why no native host carries the family.
        refused_options: option → why no native host carries a model that has it.
        has_table: its layers are known here; without that it is a base model of adapters alone.
    """

    has_table: ClassVar[bool] = True
    model_type: ClassVar[str]
    class_name: ClassVar[str]
    special_tokens: ClassVar[tuple[int | None, int | None, int | None]] = (None, None, None)
    defaults: ClassVar[Mapping[str, Any]]
    rope_theta: ClassVar[float] = 10_000.0
    options: ClassVar[tuple[str, ...]] = ("rms_norm_eps",)
    layers: ClassVar[str] = "model.layers"
    renamed: ClassVar[Mapping[str, str]] = {}
    embedding: ClassVar[str] = "model.embed_tokens.weight"
    head: ClassVar[str] = "lm_head.weight"
    down: ClassVar[str] = "mlp.down_proj"
    free_head_dim: ClassVar[bool] = True
    norms: ClassVar[tuple[str, ...]] = ("input_layernorm", "post_attention_layernorm")
    has_head_norms: ClassVar[bool] = False
    attention_norm: ClassVar[NormOutput | None] = NormOutput("input_layernorm")
    mlp_norm: ClassVar[NormOutput | None] = NormOutput()
    last_norm: ClassVar[NormOutput] = NormOutput("model.norm")
    host: ClassVar[Host | None] = None
    refused: ClassVar[str | None] = None
    refused_options: ClassVar[Mapping[str, str]] = {
        "mlp_bias": "its MLPs have biases (mlp_bias), and no native host has expert biases"
    }

    def check_table(self) -> None:
        """Raise UnsupportedFamilyError if its layers are not known here."""

    # -- configuration -----------------------------------------------------------------------------------------------

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Read a config.json (ValueError: a key is missing, or has a value that no model can have)."""
        if missing := [key for key in _REQUIRED if key not in config]:
            raise ValueError(f"{', '.join(missing)} missing")
        values: dict[str, Any] = {**_COMMON, **self.defaults, **config}
        if values["num_key_value_heads"] is None:
            values["num_key_value_heads"] = values["num_attention_heads"]
        try:
            self.fill_defaults(values)
            if values["head_dim"] is None or not self.free_head_dim:
                values["head_dim"] = values["hidden_size"] // values["num_attention_heads"]
            rope = self.rope(values)
        except (TypeError, ValueError, AttributeError, ArithmeticError, KeyError) as error:
            raise ValueError(f"its values do not go together ({error})") from error
        options = {key: values[key] for key in self.options}
        return Architecture.checked(values | {"rope_parameters": rope}, options)

    def fill_defaults(self, values: dict[str, Any]) -> None:
        """Derive values from other keys, in place; `values` has all defaults."""

    def rope(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rope's parameters in the form of transformers 5."""
        return rope_parameters(values, self.rope_theta)

    # -- tensors -----------------------------------------------------------------------------------------------------

    def outer_shapes(self, architecture: Architecture) -> Shapes:
        """Return the shapes of the tensors outside the layers."""
        hidden, vocabulary, norm = architecture.hidden_size, architecture.vocab_size, self.last_norm
        shapes: Shapes = {self.embedding: (vocabulary, hidden), f"{norm.norm}.weight": (hidden,)}
        if norm.bias:
            shapes[f"{norm.norm}.bias"] = (hidden,)
        if not architecture.tie_word_embeddings:
            shapes[self.head] = (vocabulary, hidden)
        return shapes

    def own_head(self, architecture: Architecture) -> str:
        """Return the name of the head, which is the embedding where both are tied."""
        return self.embedding if architecture.tie_word_embeddings else self.head

    def trunk_layer(self, architecture: Architecture) -> Shapes:
        """Return the shapes of one layer's trunk tensors, by their name below the layer."""
        bias = "qkvo" if architecture.options.get("attention_bias") else ""
        shapes = attention_shapes(architecture, bias=bias) | norm_shapes(architecture, *self.norms)
        if self.has_head_norms:
            shapes |= norm_shapes(architecture, "self_attn.q_norm", "self_attn.k_norm", size=architecture.head_dim)
        return shapes

    def mlp_layer(self, architecture: Architecture) -> Shapes:
        """Return the shapes of one layer's MLP tensors, by their name below the layer."""
        hidden, inner = architecture.hidden_size, architecture.intermediate_size
        shapes: Shapes = {
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }
        if architecture.options.get("mlp_bias"):
            shapes |= {"mlp.gate_proj.bias": (inner,), "mlp.up_proj.bias": (inner,), "mlp.down_proj.bias": (hidden,)}
        return shapes

    def mlp_tensors(self, layer: int, architecture: Architecture) -> Projections:
        """Return a layer's MLP tensors unchanged, by their name below the MLP."""
        return {
            name.removeprefix("mlp."): (RowSelection(self.tensor_name(layer, name)), shape)
            for name, shape in self.mlp_layer(architecture).items()
        }

    def projections(self, layer: int, architecture: Architecture) -> Projections:
        """Return the location of the three matrices of a layer's gated MLP."""
        tensors = self.mlp_tensors(layer, architecture)
        return {projection: tensors[f"{projection}.weight"] for projection in ("gate_proj", "up_proj", "down_proj")}

    def trunk_shapes(self, architecture: Architecture) -> Shapes:
        """Return the shape of every trunk tensor."""
        return self.outer_shapes(architecture) | self._in_layers(self.trunk_layer(architecture), architecture)

    def mlp_shapes(self, architecture: Architecture) -> Shapes:
        """Return the shape of every MLP tensor."""
        return self._in_layers(self.mlp_layer(architecture), architecture)

    def shapes(self, architecture: Architecture, stored: Shapes) -> Shapes:
        """Return the shape of every tensor that a checkpoint must have, which has the `stored` ones."""
        return self.trunk_shapes(architecture) | self.mlp_shapes(architecture)

    def _in_layers(self, shapes: Shapes, architecture: Architecture) -> Shapes:
        return {
            self.tensor_name(layer, name): shape
            for layer in range(architecture.num_hidden_layers)
            for name, shape in shapes.items()
        }

    def tensor_name(self, layer: int, name: str) -> str:
        """Return the full name of a tensor of a layer."""
        return f"{self.layers}.{layer}.{name}"

    # -- sites -------------------------------------------------------------------------------------------------------

    def attention(self, architecture: Architecture) -> Attention:
        """Return the linear modules of each layer's attention."""
        return Attention()

    def linear_inputs(self, architecture: Architecture) -> dict[str, tuple[str, int]]:
        """Return the site and layer of the input of each linear map: the trunk's, an untied head, MLPs' gate and up."""
        attention = self.attention(architecture)
        inputs = {} if architecture.tie_word_embeddings else {self.head: (HEAD_INPUT, 0)}
        for layer in range(architecture.num_hidden_layers):
            for name in attention.inputs:
                inputs[self.tensor_name(layer, f"{name}.weight")] = (ATTENTION_INPUT, layer)
            inputs[self.tensor_name(layer, f"{attention.output}.weight")] = (ATTENTION_OUTPUT, layer)
            for name, shape in self.mlp_layer(architecture).items():
                if len(shape) == 2 and name != f"{self.down}.weight":
                    inputs[self.tensor_name(layer, name)] = (MLP_INPUT, layer)
        return inputs

    def layer_matrices(self, architecture: Architecture) -> tuple[str, ...]:
        """Return the weights of the linear modules of attention and MLP, layer by layer."""
        attention = self.attention(architecture)
        of_mlp = [name for name, shape in self.mlp_layer(architecture).items() if len(shape) == 2]
        names = [*(f"{module}.weight" for module in (*attention.inputs, attention.output)), *of_mlp]
        return tuple(self.tensor_name(layer, name) for layer in range(architecture.num_hidden_layers) for name in names)

    def mlp_input(self, architecture: Architecture) -> NormOutput | None:
        """Return the norm that each layer's MLP reads, as `mlp_norm`."""
        return self.mlp_norm

    def mlps(self, model: Any) -> Iterator[Any]:
        """Yield the MLP module of each layer of a loaded model; its first positional input is the MLP input."""
        for layer in model.get_submodule(self.layers):
            yield layer.mlp

    # -- hosts -------------------------------------------------------------------------------------------------------

    def refusal(self, architecture: Architecture) -> str | None:
        """Return why no native host carries this model exactly, or None if one does."""
        reasons = (why for option, why in self.refused_options.items() if architecture.options.get(option))
        return next(reasons, self.refused)

    def translations(self, architecture: Architecture) -> list[Translation]:
        """Return the translations to native hosts that carry the model exactly, the preferred one first."""
        if self.host is None:
            raise NotImplementedError
        return [Translation(self.host, architecture, self.unchanged(architecture))]

    def hosts(self, architecture: Architecture) -> dict[str, Translation]:
        """Return every host that carries the model, by its name in recipes: native ones first, the default ahead."""
        native = [] if self.refusal(architecture) else self.translations(architecture)
        trunk = {self.renamed.get(name, name): tensor for name, tensor in self.unchanged(architecture).items()}
        return {
            **{translation.host.model_type: translation for translation in native},
            REMOTE_CODE: Translation(routed_host(self), architecture, trunk),
        }

    def dense(self, architecture: Architecture) -> Translation:
        """Return the translation to the dense model itself, whose MLP tensors are made like the trunk's."""
        shapes = self.trunk_shapes(architecture) | self.mlp_shapes(architecture)
        trunk: dict[str, Trunk | Constant] = {name: Trunk(shape, RowSelection(name)) for name, shape in shapes.items()}
        return Translation(dense_host(self), architecture, trunk)

    def unchanged(self, architecture: Architecture) -> dict[str, Trunk | Constant]:
        """Return the trunk unchanged, under its own names."""
        return {name: Trunk(shape, RowSelection(name)) for name, shape in self.trunk_shapes(architecture).items()}


def attention_shapes(architecture: Architecture, *, bias: str = "") -> Shapes:
    """Return the shapes of one layer's q, k, v and o projections, of which those in `bias` (as `qkv`) have a bias."""
    hidden = architecture.hidden_size
    queries = architecture.num_attention_heads * architecture.head_dim
    keys = architecture.num_key_value_heads * architecture.head_dim
    sizes = {"q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, queries)}
    shapes: Shapes = {}
    for letter, (rows, columns) in sizes.items():
        shapes[f"self_attn.{letter}_proj.weight"] = (rows, columns)
        if letter in bias:
            shapes[f"self_attn.{letter}_proj.bias"] = (rows,)
    return shapes


def norm_shapes(architecture: Architecture, *names: str, bias: bool = False, size: int | None = None) -> Shapes:
    """Return the shapes of one layer's norms; default the two of Llama."""
    shapes: Shapes = {}
    for name in names or ("input_layernorm", "post_attention_layernorm"):
        for part in ("weight", "bias") if bias else ("weight",):
            shapes[f"{name}.{part}"] = (size or architecture.hidden_size,)
    return shapes
