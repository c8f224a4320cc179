"""The context layer of a host: attention that averages the evidence of the text so far, for every router to read.

A composition of E experts, hidden size H and L layers becomes one of hidden size H′ = H + W and L + 1 layers, which
computes the same function of the same stream and routes by the mean evidence of the recent text:

    reserved channels   H + e               a · ρ_v · ℓ_e(v)    evidence of the token, from the embedding (V, H′)
                        H + E               a · ρ_v             a constant once a norm has divided by ρ_v
                        H + E + 1 + e       s · m_e             its mean over the text so far, from the context layer
    context layer       before layer 0: values read the evidence, the output writes the mean; MLPs and router are zero
    queries and keys    read the constant into rotary pairs, so that attention falls with distance (`maths.context`)
    routers             row e is κ at the mean of expert e: the expert of most evidence is on top

Everything else ignores the reserved channels: zero columns in what reads the stream, zero rows in what writes it. A
norm over H′ channels divides by √(Σx²/H′ + ε′), so its weights times √(H/H′) and ε′ = ε H/H′ give the old values; the
reserved channels add less than 1e-6 to the mean square, which is the rounding of float32.

*Sizes.* a and s are small powers of two times the row's own size (ρ_v, its mean in s), so that norms do not see them
and float16 holds them; κ is within float16. At one expert per token sizes do not matter at all, only their order.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from registry.hosts.architecture import Architecture
from registry.hosts.host import LAYERS, Host
from registry.hosts.tensors import Constant, Entries, EvidenceEmbedding, Experts, Made, Trunk, Widened

EVIDENCE = 2.0**-10
"""a: size of a nat of evidence beside the embedding's row."""

MEAN = 2.0**-8
"""s: size of a nat of mean evidence beside the embedding's mean row."""

SHARPNESS = 2.0**15 * 0.05
"""κ times the temperature: 2^15 at the default temperature of 0.05, the largest power of two in float16."""

CONTEXT_LAYERS = "context_layers"
"""Key of config.json: the numbers of the layers that only average evidence."""

_LEAST, _MOST = 8, 64
"""Reserved channels come in multiples of a power of two from the one to the other, up to H / 64."""


@dataclass(frozen=True)
class Windowed:
    """One head's window over the past.

    Attributes:
        share: the head's part in the mean.
        amplitudes: A of each rotary pair, (d / 2); empty for the plain mean of the whole text so far.
    """

    share: float
    amplitudes: tuple[float, ...] = ()


class ContextLayout:
    """The tensors of a composition with a context layer.

    Args:
        host: a host with `context`.
        architecture: of the composition without it, in the host's terms.
        experts: E.
        windows: the windows that are averaged; the first heads have one each.
        rotary_factor: what the host's rope multiplies queries and keys by.

    Raises:
        ValueError: the host has no context layer, or its heads have too few channels for so many experts.
    """

    def __init__(
        self,
        host: Host,
        architecture: Architecture,
        experts: int,
        windows: Sequence[Windowed],
        rotary_factor: float = 1.0,
    ) -> None:
        if host.context is None:
            raise ValueError(f"{host.model_type} has no context layer")
        self._host, self._kind, self._inner, self._experts = host, host.context, architecture, experts
        heads, size = architecture.num_attention_heads, architecture.head_dim
        if experts > size:
            raise ValueError(f"heads of {size} channels hold the evidence of {size} experts, not of {experts}")
        if len(windows) > architecture.num_key_value_heads:
            raise ValueError(
                f"{len(windows)} windows need as many heads of keys, not {architecture.num_key_value_heads}"
            )
        self._group = heads // architecture.num_key_value_heads
        self._windows, self._factor = windows, rotary_factor
        self._hidden = architecture.hidden_size
        self.hidden_size = self._hidden + reserved_channels(self._hidden, experts)
        self._shrink = math.sqrt(self._hidden / self.hidden_size)

    @property
    def architecture(self) -> Architecture:
        """The sizes of the composition with its context layer."""
        options = dict(self._inner.options)
        for key, first in (("layer_types", "full_attention"), ("no_rope_layers", 1)):
            if key in options:
                options[key] = [first if first in options[key] else options[key][0], *options[key]]
        options["rms_norm_eps"] *= self._hidden / self.hidden_size
        options[CONTEXT_LAYERS] = [0]
        return replace(
            self._inner,
            hidden_size=self.hidden_size,
            num_hidden_layers=self._inner.num_hidden_layers + 1,
            tie_word_embeddings=False,
            options=options,
        )

    def name(self, name: str) -> str:
        """Return the name of a tensor of the composition without the layer: layers count from 1."""
        layer, below = _split(name)
        return name if layer is None else f"{LAYERS}.{layer + 1}.{below}"

    def trunk(self, trunk: Mapping[str, Trunk | Constant]) -> dict[str, Made]:
        """Return the trunk, widened, with the context layer's part of it, name by name."""
        made: dict[str, Made] = {}
        layer: dict[str, Made] = {}
        for name, tensor in trunk.items():
            number, below = _split(name)
            made[self.name(name)] = self._widened(name, tensor)
            if number == 0:
                layer[f"{LAYERS}.0.{below}"] = self._own(below, tensor)
        if self._inner.tie_word_embeddings:
            head = trunk["model.embed_tokens.weight"]
            assert isinstance(head, Trunk)
            made["lm_head.weight"] = Widened(head, (*head.shape[:-1], self.hidden_size), -1)
        return layer | made

    def experts(self, tensor: Experts) -> Widened:
        """Return a tensor of experts, widened: their down projections have the stream in their rows."""
        down = self._is_down(tensor)
        axis = -2 if down else -1
        shape = list(tensor.shape)
        shape[axis] = self.hidden_size
        return Widened(tensor, tuple(shape), 0 if down else -1)

    def no_experts(self, tensor: Experts) -> Constant:
        """Return the context layer's counterpart of a tensor of experts: zeros."""
        return Constant(self.experts(tensor).shape, 0.0)

    def gate(self, temperature: float) -> Entries:
        """Return the router of every layer."""
        kappa = SHARPNESS / temperature
        return Entries(
            (self._experts, self.hidden_size), tuple(((e, self._mean(e)), kappa) for e in range(self._experts))
        )

    def no_gate(self) -> Constant:
        """Return the router of the context layer, whose experts are zero whichever it chooses."""
        return Constant((self._experts, self.hidden_size), 0.0)

    # -- widening ----------------------------------------------------------------------------------------------------

    def _widened(self, name: str, tensor: Trunk | Constant) -> Made:
        axis = _stream_axis(name)
        if axis is None:
            return tensor
        shape = list(tensor.shape)
        shape[axis] = self.hidden_size
        if isinstance(tensor, Constant):
            return Constant(tuple(shape), tensor.value)
        if name == "model.embed_tokens.weight":
            epsilon = None
            if not self._kind.norm_after:
                multiplier = float(self._inner.options.get("embedding_multiplier", 1.0))
                epsilon = float(self._inner.options["rms_norm_eps"]) / multiplier**2
            return EvidenceEmbedding(tensor, tuple(shape), self._experts, EVIDENCE, epsilon)
        if not name.endswith("norm.weight"):
            return Widened(tensor, tuple(shape), axis)
        read = name.endswith("post_attention_layernorm.weight") and not self._kind.norm_after  # by routers
        tail = tuple((self._mean(e), self._shrink) for e in range(self._experts)) if read else ()
        return Widened(tensor, tuple(shape), 0, self._shrink, tail)

    def _is_down(self, tensor: Experts) -> bool:
        return tensor.shape[-2] == self._hidden and tensor.parts[0][1].name.endswith("down_proj.weight")

    # -- the context layer -------------------------------------------------------------------------------------------

    def _own(self, below: str, tensor: Trunk | Constant) -> Made:
        """Return the context layer's tensor of a name."""
        widened = self._widened(f"{LAYERS}.0.{below}", tensor)
        shape = widened.shape
        match below:
            case "input_layernorm.weight":
                channels = [self._evidence(e) for e in range(self._experts)] + [self._constant]
                return Entries(shape, tuple(((channel,), self._shrink) for channel in channels))
            case "post_attention_layernorm.weight" if self._kind.norm_after:
                size = MEAN / math.sqrt(self.hidden_size)
                return Entries(shape, tuple(((self._mean(e),), size) for e in range(self._experts)), stream_units=True)
            case "self_attn.q_proj.weight":
                return Entries(shape, tuple(self._rotary(self._group)))
            case "self_attn.k_proj.weight":
                return Entries(shape, tuple(self._rotary(1)))
            case "self_attn.q_norm.weight" | "self_attn.k_norm.weight":
                return Constant(shape, self._norm_weight(below, shape[0]))
            case "self_attn.v_proj.weight":
                return Entries(shape, tuple(self._values()))
            case "self_attn.o_proj.weight":
                return Entries(shape, tuple(self._output()), stream_units=not self._kind.norm_after)
        if isinstance(tensor, Constant):
            return widened
        return Constant(shape, 0.0)

    def _values(self) -> list[tuple[tuple[int, int], float]]:
        """Return the entries of v: the head of keys of each window holds the evidence."""
        size = self._inner.head_dim
        return [
            ((head * size + e, self._evidence(e)), 1 / EVIDENCE)
            for head in range(len(self._windows))
            for e in range(self._experts)
        ]

    def _output(self) -> list[tuple[tuple[int, int], float]]:
        """Return the entries of o: the sum of the windows' means, each with its share."""
        size = self._inner.head_dim
        scale = 1.0 if self._kind.norm_after else MEAN / float(self._inner.options.get("residual_multiplier", 1.0))
        return [
            ((self._mean(e), head * self._group * size + e), scale * window.share)
            for e in range(self._experts)
            for head, window in enumerate(self._windows)
        ]

    def _rotary(self, group: int) -> list[tuple[tuple[int, int], float]]:
        """Return the entries of q (`group` = heads of queries for one of keys) or k: √(A / scale) from the constant."""
        size = self._inner.head_dim
        return [
            ((head * group * size + pair, self._constant), value / EVIDENCE)
            for head, window in enumerate(self._windows)
            for pair, value in enumerate(self._constants(window))
            if value
        ]

    def _constants(self, window: Windowed) -> list[float]:
        scale = self._kind.scale(self._inner)
        return [math.sqrt(amplitude / scale) / self._factor for amplitude in window.amplitudes]

    def _norm_weight(self, below: str, channels: int) -> float:
        """Return the weight of a norm over queries or keys that gives back the constants.

        A norm over each head serves one window; one over all heads serves any number.
        """
        squares = [sum(value**2 for value in self._constants(window)) for window in self._windows]
        whole = sum(squares) if self._kind.query_key_norm == "all heads" else max(squares)
        return math.sqrt(whole / channels + self.architecture.options["rms_norm_eps"]) if whole else 1.0

    # -- channels ----------------------------------------------------------------------------------------------------

    def _evidence(self, expert: int) -> int:
        return self._hidden + expert

    @property
    def _constant(self) -> int:
        return self._hidden + self._experts

    def _mean(self, expert: int) -> int:
        return self._hidden + self._experts + 1 + expert


def reserved_channels(hidden_size: int, experts: int) -> int:
    """Return W: 2E + 1 rounded up to a multiple of a power of two, 64 in large models, that adds at most H / 64."""
    step = _LEAST
    while step < _MOST and step * 2 <= hidden_size // 64:
        step *= 2
    return -(-(2 * experts + 1) // step) * step


def attention_reach(architecture: Architecture, length: int) -> int:
    """Return how many of `length` tokens the context layer sees: fewer where every layer of a host has a window."""
    options = architecture.options
    everywhere = "full_attention" not in options.get("layer_types", ())
    window = options.get("sliding_window") if everywhere else None
    return length if window is None else min(length, window)


def _split(name: str) -> tuple[int | None, str]:
    """Return the layer of a tensor, None where it is in none, and its name below the layer."""
    if not name.startswith(f"{LAYERS}."):
        return None, name
    number, _, below = name.removeprefix(f"{LAYERS}.").partition(".")
    return int(number), below


_COLUMNS = ("embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "shared_expert_gate")
_ROWS = ("o_proj", "down_proj")


def _stream_axis(name: str) -> int | None:
    """Return the axis of a trunk tensor that is the residual stream's, None where it has none."""
    module, _, kind = name.rpartition(".")
    last = module.rpartition(".")[2]
    if last in _COLUMNS and kind == "weight":
        return -1
    if last in _ROWS or last == "norm" or last.endswith("_layernorm"):
        return 0
    return None
