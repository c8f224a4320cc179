"""A dense family: its configuration, its tensors, where its MLP input is, and the hosts that carry it exactly."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from registry.families.rope import rope_parameters
from registry.families.sites import ATTENTION_INPUT, ATTENTION_OUTPUT, HEAD_INPUT, MLP_INPUT
from registry.hosts import Constant, Host, Projections, RowSelection, Trunk
from registry.hosts.architecture import Architecture
from registry.hosts.dense import dense_host
from registry.hosts.remote_code import REMOTE_CODE, remote_code_host

TANH_GELU = "gelu_pytorch_tanh"
"""Gemma's activation, as configurations name it."""

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
"""The three matrices of a gated MLP."""

Shapes = dict[str, tuple[int, ...]]

_COMMON = {"num_key_value_heads": None, "head_dim": None, "hidden_act": "silu"}
_REQUIRED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@dataclass(frozen=True)
class NormOutput:
    """An input that a norm over the hidden axis gives, so that the norm's weights bound it.

    Attributes:
        norm: the norm's name below the layer; that of the last norm is whole.
        offset: what the norm adds to its weight.
        bias: it has a bias.
    """

    norm: str = "post_attention_layernorm"
    offset: float = 0.0
    bias: bool = False


@dataclass(frozen=True)
class ResidualStream:
    """An input that is the residual stream itself: embeddings and the outputs of the norms that were added so far.

    Attributes:
        embedding: the embedding's tensor.
        after_attention: the norm of each attention's output, below the layer.
        after_mlp: the norm of each MLP's output, below the layer.
    """

    embedding: str = "model.embed_tokens.weight"
    after_attention: str = "post_attention_layernorm"
    after_mlp: str = "post_feedforward_layernorm"


@dataclass(frozen=True)
class Attention:
    """The linear modules of a layer's attention, by their names below the layer.

    Attributes:
        inputs: those that see the attention input.
        output: the one that sees the heads' outputs.
        values: the one that makes the values.
        value_rows: the rows of it that do, head by head; None for all.
    """

    inputs: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    output: str = "self_attn.o_proj"
    values: str = "self_attn.v_proj"
    value_rows: Sequence[int] | None = None


@dataclass(frozen=True)
class Translation:
    """How a host carries one dense model.

    Attributes:
        host: the native architecture.
        architecture: the model's, in the host's terms: what its config.json is made of.
        trunk: host name → how each trunk tensor is made.
        notes: what a user should know of the result.
    """

    host: Host
    architecture: Architecture
    trunk: Mapping[str, Trunk | Constant]
    notes: tuple[str, ...] = ()


class Family:
    """One dense model type; a subclass says in what it differs from Llama.

    Attributes:
        model_type: the `model_type` of its config.json.
        class_name: its transformers class.
        special_tokens: ids of the tokens that begin, end and pad a text, where config.json leaves them out.
        defaults: what transformers takes for the keys that config.json leaves out.
        rope_theta: the same for the rope.
        options: the keys that decide its function beside the sizes.
        layers: where its layers are, as a module and in tensor names.
        renamed: tensors that its transformers class has under another name than its checkpoints.
        embedding: its embedding's tensor.
        head: its head's tensor, where that is not tied to the embedding.
        down: the last linear module of each MLP, below the layer; all others see the MLP input.
    """

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

    # -- configuration -----------------------------------------------------------------------------------------------

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Read a config.json.

        Raises:
            ValueError: a key is missing, or has a value that no model can have.
        """
        if missing := [key for key in _REQUIRED if key not in config]:
            raise ValueError(f"{', '.join(missing)} missing")
        values: dict[str, Any] = {**_COMMON, **self.defaults, **config}
        if values["num_key_value_heads"] is None:
            values["num_key_value_heads"] = values["num_attention_heads"]
        try:
            self.fill_defaults(values)
            if values["head_dim"] is None:
                values["head_dim"] = values["hidden_size"] // values["num_attention_heads"]
            rope = self.rope(values)
        except (TypeError, ValueError, AttributeError, ArithmeticError, KeyError) as error:
            raise ValueError(f"its values do not go together ({error})") from error
        options = {key: values[key] for key in self.options}
        return Architecture.checked(values | {"rope_parameters": rope}, options)

    def fill_defaults(self, values: dict[str, Any]) -> None:
        """Fill in what this family derives from other keys; `values` has all defaults."""

    def rope(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rope's parameters as transformers 5 writes them."""
        return rope_parameters(values, self.rope_theta)

    # -- tensors -----------------------------------------------------------------------------------------------------

    def outer_shapes(self, architecture: Architecture) -> Shapes:
        """Return the shapes of the tensors outside the layers."""
        hidden, vocabulary = architecture.hidden_size, architecture.vocab_size
        shapes: Shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
        if not architecture.tie_word_embeddings:
            shapes["lm_head.weight"] = (vocabulary, hidden)
        return shapes

    def trunk_layer(self, architecture: Architecture) -> Shapes:
        """Return the shapes of one layer's trunk tensors, by their name below the layer."""
        bias = bool(architecture.options.get("attention_bias"))
        return attention_shapes(architecture, bias="qkvo" if bias else "") | norm_shapes(architecture)

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
        """Return a layer's MLP tensors as they are, by their name below the MLP."""
        return {
            name.removeprefix("mlp."): (RowSelection(self.tensor_name(layer, name)), shape)
            for name, shape in self.mlp_layer(architecture).items()
        }

    def projections(self, layer: int, architecture: Architecture) -> Projections:
        """Return where the three matrices of a layer's gated MLP are."""
        shapes = self.mlp_layer(architecture)
        return {
            projection: (RowSelection(self.tensor_name(layer, name)), shapes[name])
            for projection in PROJECTIONS
            for name in (f"mlp.{projection}.weight",)
        }

    def trunk_shapes(self, architecture: Architecture) -> Shapes:
        """Return the shape of every trunk tensor."""
        layer_shapes = self.trunk_layer(architecture)
        return self.outer_shapes(architecture) | {
            self.tensor_name(layer, name): shape
            for layer in range(architecture.num_hidden_layers)
            for name, shape in layer_shapes.items()
        }

    def mlp_shapes(self, architecture: Architecture) -> Shapes:
        """Return the shape of every MLP tensor."""
        layer_shapes = self.mlp_layer(architecture)
        return {
            self.tensor_name(layer, name): shape
            for layer in range(architecture.num_hidden_layers)
            for name, shape in layer_shapes.items()
        }

    def tensor_name(self, layer: int, name: str) -> str:
        """Return the whole name of a tensor of a layer."""
        return f"{self.layers}.{layer}.{name}"

    # -- sites -------------------------------------------------------------------------------------------------------

    def attention(self, architecture: Architecture) -> Attention:
        """Return the linear modules of each layer's attention."""
        return Attention()

    def attention_input(self, architecture: Architecture) -> NormOutput | ResidualStream:
        """Return what the attention of each layer sees, and so what bounds it."""
        return NormOutput("input_layernorm")

    def head_input(self, architecture: Architecture) -> NormOutput:
        """Return the norm before the head, by its whole name."""
        return NormOutput("model.norm")

    def residual(self, architecture: Architecture) -> float | None:
        """Return what the outputs of attention and MLP are multiplied by when they join the residual stream.

        None where a norm stands in between, so that no linear map makes what is added.
        """
        return 1.0

    def linear_inputs(self, architecture: Architecture) -> dict[str, tuple[str, int]]:
        """Return the site and layer that each linear map of the trunk, and each MLP's gate and up, has as its input.

        The embedding is no linear map; where the head is tied to it, neither is that one.
        """
        attention = self.attention(architecture)
        found = {} if architecture.tie_word_embeddings else {self.head: (HEAD_INPUT, 0)}
        for layer in range(architecture.num_hidden_layers):
            for name in attention.inputs:
                found[self.tensor_name(layer, f"{name}.weight")] = (ATTENTION_INPUT, layer)
            found[self.tensor_name(layer, f"{attention.output}.weight")] = (ATTENTION_OUTPUT, layer)
            for name, shape in self.mlp_layer(architecture).items():
                if len(shape) == 2 and name != f"{self.down}.weight":
                    found[self.tensor_name(layer, name)] = (MLP_INPUT, layer)
        return found

    def mlp_input(self, architecture: Architecture) -> NormOutput | ResidualStream:
        """Return what the MLP of each layer sees, and so what bounds it."""
        return NormOutput()

    def mlps(self, model: Any) -> Iterator[Any]:
        """Yield the MLP module of each layer of a loaded model; its first positional input is the MLP input."""
        for layer in model.get_submodule(self.layers):
            yield layer.mlp

    # -- hosts -------------------------------------------------------------------------------------------------------

    def refusal(self, architecture: Architecture) -> str | None:
        """Return why no native host carries this model exactly, or None where one does."""
        if architecture.options.get("mlp_bias"):
            return "its MLPs have biases (mlp_bias), and no native host has expert biases"
        return None

    def translations(self, architecture: Architecture) -> list[Translation]:
        """Return how each native host that carries the model exactly does so, the preferred one first."""
        raise NotImplementedError

    def hosts(self, architecture: Architecture) -> dict[str, Translation]:
        """Return every host that carries the model, by what a recipe calls it; native ones first, the default ahead."""
        native = [] if self.refusal(architecture) else self.translations(architecture)
        remote = remote_code_host(self.model_type, self.class_name, self.layers)
        return {
            **{translation.host.model_type: translation for translation in native},
            REMOTE_CODE: Translation(
                remote,
                architecture,
                {self.renamed.get(name, name): made for name, made in self.unchanged(architecture).items()},
            ),
        }

    def dense(self, architecture: Architecture) -> Translation:
        """Return the model as itself, each MLP tensor made as the trunk's are."""
        shapes = self.trunk_shapes(architecture) | self.mlp_shapes(architecture)
        trunk: dict[str, Trunk | Constant] = {name: Trunk(shape, RowSelection(name)) for name, shape in shapes.items()}
        return Translation(dense_host(self.model_type, self.class_name, self.layers), architecture, trunk)

    def unchanged(self, architecture: Architecture) -> dict[str, Trunk | Constant]:
        """Return the trunk as it is, under its own names."""
        return {name: Trunk(shape, RowSelection(name)) for name, shape in self.trunk_shapes(architecture).items()}


def attention_shapes(architecture: Architecture, *, bias: str = "") -> Shapes:
    """Return the shapes of one layer's q, k, v and o projections, as Llama names them.

    Args:
        architecture: the sizes.
        bias: which of the projections have one: some of the letters `qkvo`.
    """
    hidden = architecture.hidden_size
    queries = architecture.num_attention_heads * architecture.head_dim
    keys = architecture.num_key_value_heads * architecture.head_dim
    shapes: Shapes = {}
    for letter, (rows, columns) in {
        "q": (queries, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "o": (hidden, queries),
    }.items():
        shapes[f"self_attn.{letter}_proj.weight"] = (rows, columns)
        if letter in bias:
            shapes[f"self_attn.{letter}_proj.bias"] = (rows,)
    return shapes


def norm_shapes(architecture: Architecture, *names: str, bias: bool = False, size: int | None = None) -> Shapes:
    """Return the shapes of one layer's norms: of the two that Llama has, unless others are named."""
    shapes: Shapes = {}
    for name in names or ("input_layernorm", "post_attention_layernorm"):
        for part in ("weight", "bias") if bias else ("weight",):
            shapes[f"{name}.{part}"] = (size or architecture.hidden_size,)
    return shapes
