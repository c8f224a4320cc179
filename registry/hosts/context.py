"""The context layer of a host: attention that averages the evidence of the text so far, for every router to read.

A composition of E experts, hidden size H and L layers becomes one of hidden size H′ = H + W and L + 1 layers (one more
with head maps, see `head_map`), which computes the same function of the same stream and routes by the mean evidence of
the recent text:

    reserved channels   H + e               a · ρ_v · ℓ_e(v)    evidence of the token, from the embedding (V, H′)
                        H + E               c · ρ_v             a constant once a norm has divided by ρ_v
                        H + E + 1 + e       s · m_e             its mean over the text so far, from the context layer
                        H + 2E + 1 + e      s · f_e             its mean over the last few tokens
                        H + 3E + 1          s                   a constant beside the means, for thresholds
                        after these         ρ̄ / 32              a constant, where there are head maps (`head_map`)
    context layer       before layer 0: values read the evidence, the output writes the two means, some heads each, and
                        the MLP changes m_e where f exceeds thresholds (`context_mlp`): what has just begun is noticed
    queries and keys    read the constant into rotary pairs, so that attention falls with distance (`maths.context`)
    routers             row e is κ at the mean of expert e: the expert of most evidence is on top

*Heads.* One channel of a head's values holds the evidence of one expert, and one the constant: E + 1 channels are
n = ⌈(E + 1) / d⌉ heads of d channels, one after the other. Each window has n heads of keys and values of its own where
there are 2n; where there are fewer, the query heads of one group read the same values with a window each, through keys
that serve both; where each query head has values of its own, there is the slow window alone (`most_experts`). More
experts than one layer holds are shared between several, one after the other, the last of which has the MLP.

Everything else ignores the reserved channels: zero columns in what reads the stream, zero rows in what writes it. A
norm over H′ channels divides by √(Σx²/H′ + ε′), so its weights times √(H/H′) and ε′ = ε H/H′ give the old values; the
reserved channels add about 1e-6 to the mean square, near the rounding of float32, and 2e-8 for each expert
at most.

*Sizes.* a, c and s are small powers of two times the row's own size (ρ_v, its mean in s), so that norms do not see them
and float16 holds them; κ is within float16. What the added layer computes with is so shared between its projections
that quantizers hold it: blocks of 8 to 3 bits with a float16 scale, or float8 with one scale a tensor. At one
expert per token the sizes of means do not matter at all, only their order.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from registry.hosts.architecture import Architecture
from registry.hosts.context_mlp import ALARM, LEVEL, STEEP, UP, ContextMlp, compares
from registry.hosts.head_map import STEADY, HeadMapLayer, is_down, projection_of
from registry.hosts.host import LAYERS, ContextAttention, Host
from registry.hosts.tensors import Constant, Entries, EvidenceEmbedding, Experts, Made, Trunk, Widened

_EVIDENCE = 2.0**-10
"""Least size of a nat of evidence, relative to the embedding's row."""

_CONSTANT = 2.0**-7
"""Size of the constant relative to the row, in a stream of 256 channels."""

MEAN = 2.0**-10
"""s: size of a nat of mean evidence, relative to the embedding's mean row."""

SHARPNESS = 2.0**15 * 0.05
"""κ times the temperature: 2^15 at the default temperature of 0.05, the largest power of two in float16."""

CONTEXT_LAYERS = "context_layers"
"""Key of config.json: the numbers of the added layers, which hold no member's MLPs."""

_STEPS = (64, 256)
"""Hidden sizes are multiples of the first, so that kernels take them and blocks of 32 numbers divide their rows, and of
the second, as k-quants want them, where that costs less than `_MORE`."""

_MORE = 0.02

_GAIN = 2.0**4
"""What a norm before the MLP multiplies the fast mean by, so that the activation bends within 2e-3 nats."""

_VALUE = 2.0**-8
"""Size of a nat in the values of the context layer, where a norm leads attention.

The smaller it is, the larger the output projection is: a quarter of an embedding's row here, so that the float16 scales
of blocks of 4 to 8 bits hold it.
"""

_READ = 2.0**-8
"""What that norm makes of the constant: a 32nd of the largest number that is read with it, for products in 8 bits."""

_UNIT = 2.0**-10
"""What up rows make of the constant where no norm leads the MLP."""

_GATED = ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
"""Activations that are nearly max(0, z) for a large z."""

_SOFT = 0.1
"""Part of the square root of epsilon that a norm's input has at most, where the norm is to be linear."""


@dataclass(frozen=True)
class ContextWindows:
    """The windows of a context layer.

    Attributes:
        slow: A of each rotary pair (d / 2), of the mean evidence; empty for the plain mean of the whole text so far.
        fast: A of each rotary pair, of the evidence of the last few tokens; empty for none.
        factor: what the host's rope multiplies queries and keys by.
    """

    slow: tuple[float, ...] = ()
    fast: tuple[float, ...] = ()
    factor: float = 1.0


def most_experts(architecture: Architecture, *, fast: bool) -> int:
    """Return how many experts' evidence the values of a layer hold, in both windows if `fast`: d - 1 a head and more.

    Query heads that share a head of values share it between windows; those that do not take half of the heads each.
    """
    heads = architecture.num_key_value_heads
    if fast and architecture.num_attention_heads == heads:
        heads //= 2
    return heads * architecture.head_dim - 1


def layers_of(kind: ContextAttention, architecture: Architecture, experts: int, *, fast: bool) -> list[range]:
    """Return the experts of each context layer: all in one where they fit, with the slow window at least.

    Raises:
        ValueError: they fit into no layers; where a norm follows attention it is one, as it sees all means together.
    """
    most = most_experts(architecture, fast=False)
    if experts > most and not kind.norm_after and fast:
        most = most_experts(architecture, fast=True)
    if most < 1 or (experts > most and kind.norm_after):
        heads = f"{architecture.num_key_value_heads} key-value heads of {architecture.head_dim} channels"
        raise ValueError(f"{heads} hold the evidence of at most {max(most, 0)} experts, not of {experts}")
    size = -(-experts // -(-experts // most))
    return [range(first, min(first + size, experts)) for first in range(0, experts, size)]


def no_fast_window(
    kind: ContextAttention, architecture: Architecture, windows: ContextWindows, experts: int
) -> str | None:
    """Return why a host's attention and MLP cannot hold the second window, None where they can.

    It takes heads of its own, an activation that is nearly max(0, z) for each expert, and two idle rotary pairs where
    queries and keys are brought to one length.
    """
    most, inner = most_experts(architecture, fast=True), architecture.intermediate_size
    if most < 1 or most < experts <= most_experts(architecture, fast=False):  # one layer, with the slow window alone
        heads = f"attention of {architecture.num_attention_heads} × {architecture.head_dim} channels"
        return f"{heads} holds two windows of the evidence of at most {max(most, 0)} experts, not of {experts}"
    if experts > inner:
        return f"MLPs of {inner} activations notice at most {inner} experts, not {experts}"
    if architecture.hidden_act not in _GATED:
        return f"the activation {architecture.hidden_act} is not nearly max(0, x)"
    used = [pair for amplitudes in (windows.slow, windows.fast) for pair, value in enumerate(amplitudes) if value]
    idle = architecture.head_dim // 2 - 1 - max(used, default=-1)
    if kind.query_key_norm == "each head" and idle < 2:
        return f"norms of queries and keys take 2 idle rotary pairs, and windows leave {idle}"
    return None


@dataclass(frozen=True)
class _Head:
    """One head of the context layer: the numbers of its query and key heads, and their constants by rotary pair."""

    query: int
    key: int
    queries: tuple[float, ...]
    keys: tuple[float, ...]


class ContextLayout:
    """The tensors of a composition with a context layer.

    Args:
        host: a host with `context`.
        architecture: of the composition without it, in the host's terms.
        maps: add a last layer with head maps.

    Raises:
        ValueError: the host has no context layer, or its values have too few channels for so many experts.
    """

    def __init__(
        self, host: Host, architecture: Architecture, experts: int, windows: ContextWindows, *, maps: bool = False
    ) -> None:
        if host.context is None:
            raise ValueError(f"{host.model_type} has no context layer")
        self._kind, self._inner, self._experts = host.context, architecture, experts
        self._fast = bool(windows.fast)
        self._layers = layers_of(self._kind, architecture, experts, fast=self._fast)
        heads = -(-(len(self._layers[0]) + 1) // architecture.head_dim)
        self._windows = _heads(self._kind, architecture, windows, heads)
        self._heads = [head for heads in self._windows for head in heads]
        self._hidden = hidden = architecture.hidden_size
        self.hidden_size = hidden + reserved_channels(hidden, experts, fast=self._fast, maps=maps)
        self._shrink = math.sqrt(hidden / self.hidden_size)
        self._constant_size = constant_size(hidden)
        # The reserved channels, as at the top of this file.
        self._constant = hidden + experts
        self._evidence, self._means = range(hidden, self._constant), range(self._constant + 1, hidden + 2 * experts + 1)
        self._fast_means = range(self._means.stop, self._means.stop + experts)
        self._level = self._fast_means.stop
        self._steady = self._level + 1 if self._fast else self._means.stop
        self._has_steady = maps and not self._kind.norm_after
        self._projections: dict[tuple[str, tuple[int, ...]], Entries] = {}
        self._last = None
        if maps:
            steady = self._steady if self._has_steady else self._constant
            self._last = HeadMapLayer(self._kind, architecture, self._shrink, steady, self._constant_size, self._means)

    @property
    def architecture(self) -> Architecture:
        """The sizes of the composition with its context layer."""
        options, layers, first_layers = dict(self._inner.options), self._inner.num_hidden_layers, len(self._layers)
        added = [*range(first_layers), *([] if self._last is None else [layers + first_layers])]
        for key, first in (("layer_types", "full_attention"), ("no_rope_layers", 1)):
            if key in options:
                given = options[key]
                before = [first if first in given else given[0]] * first_layers
                options[key] = [*before, *given, *given[-1:] * (len(added) - first_layers)]
        options["rms_norm_eps"] *= self._hidden / self.hidden_size
        options[CONTEXT_LAYERS] = added
        return replace(
            self._inner,
            hidden_size=self.hidden_size,
            num_hidden_layers=layers + len(added),
            tie_word_embeddings=False,
            options=options,
        )

    def name(self, name: str) -> str:
        """Return the name of a tensor of the composition without the layer: layers count from the context layers on."""
        layer, below = _split(name)
        return name if layer is None else f"{LAYERS}.{layer + len(self._layers)}.{below}"

    def own_names(self, name: str) -> list[str]:
        """Return the names of the context layers' counterparts of a tensor of layer 0; of none of any other."""
        layer, below = _split(name)
        return [f"{LAYERS}.{number}.{below}" for number in range(len(self._layers))] if layer == 0 else []

    def last_name(self, name: str) -> str:
        """Return the name of the last layer's counterpart of a tensor of a layer."""
        return f"{LAYERS}.{self._inner.num_hidden_layers + len(self._layers)}.{_split(name)[1]}"

    def is_copied_last(self, name: str) -> bool:
        """Return whether a tensor is of the layer whose shapes an added last layer has."""
        return self._last is not None and _split(name)[0] == self._inner.num_hidden_layers - 1

    def trunk(self, trunk: Mapping[str, Trunk | Constant]) -> dict[str, Made]:
        """Return the trunk, widened, with the context layer's part of it, name by name."""
        made: dict[str, Made] = {}
        layer: dict[str, Made] = {}
        for name, tensor in trunk.items():
            number, below = _split(name)
            widened = made[self.name(name)] = self._widened(name, tensor)
            for own, experts in zip(self.own_names(name), self._layers, strict=False):
                layer[own] = self._own(below, tensor, experts)
            if number == self._inner.num_hidden_layers - 1 and self._last is not None:
                made[self.last_name(name)] = self._last.trunk(below, widened)
        if self._inner.tie_word_embeddings:
            head = trunk["model.embed_tokens.weight"]
            assert isinstance(head, Trunk)
            made["lm_head.weight"] = Widened((*head.shape[:-1], self.hidden_size), head, -1)
        return layer | made

    def experts(self, tensor: Experts) -> Widened:
        """Return a tensor of experts, widened."""
        down = is_down(tensor, self._hidden)
        axis = -2 if down else -1
        shape = list(tensor.shape)
        shape[axis] = self.hidden_size
        return Widened(tuple(shape), tensor, 0 if down else -1)

    def own_experts(self, name: str, tensor: Experts) -> Made:
        """Return the tensor of a context layer's experts of this name, which are all alike, given that of layer 0."""
        shape = self.experts(tensor).shape
        if not self._fast or _split(name)[0] != len(self._layers) - 1:
            return Entries(shape)
        key = projection_of(name, tensor, self._hidden), shape
        if key not in self._projections:  # E² comparisons each, which all experts' tensors have in common
            self._projections[key] = self._mlp.projection(*key)
        return self._projections[key]

    @property
    def _mlp(self) -> ContextMlp:
        return ContextMlp(
            compares(self._inner, self._experts),
            self._kind.norm_after,
            self._means,
            self._fast_means,
            self._level,
            (self._constant, _UNIT / self._constant_size if self._kind.norm_after else UP),
            self._down_size,
        )

    def last_experts(self, name: str, tensor: Experts) -> Made:
        """Return the last layer's counterpart of a tensor of experts: their head maps."""
        assert self._last is not None
        return self._last.experts(name, tensor, self.experts(tensor).shape)

    def gate(self, temperature: float) -> Entries:
        """Return the router of every layer."""
        kappa = SHARPNESS / temperature
        entries = tuple((place, kappa) for place in enumerate(self._means))
        return Entries((self._experts, self.hidden_size), entries)

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
            sizes = evidence_size(self._hidden), self._constant_size
            return EvidenceEmbedding(tuple(shape), tensor, self._experts, *sizes, epsilon)
        if not name.endswith("norm.weight"):
            return Widened(tuple(shape), tensor, axis)
        read = name.endswith("post_attention_layernorm.weight") and not self._kind.norm_after  # by routers
        tail = tuple((channel, self._shrink) for channel in self._means) if read else ()
        return Widened(tuple(shape), tensor, 0, self._shrink, tail)

    # -- the context layer -------------------------------------------------------------------------------------------

    def _own(self, below: str, tensor: Trunk | Constant, experts: range) -> Made:
        widened = self._widened(f"{LAYERS}.0.{below}", tensor)
        shape, after, means = widened.shape, self._kind.norm_after, self._means
        fast = [*self._fast_means, self._level] if self._fast else []

        def norm(channels: Sequence[int], weight: float, power: int = 0) -> Entries:
            return Entries(shape, tuple(((channel,), weight) for channel in channels), power)

        match below:
            case "input_layernorm.weight":
                return norm([*self._evidence, self._constant], self._shrink)
            case "post_attention_layernorm.weight" if after:
                size = MEAN / math.sqrt(self.hidden_size)
                return Entries(shape, (*norm(means, size).entries, *norm(fast, size * _GAIN).entries), 1)
            case "post_attention_layernorm.weight":
                if not fast or experts != self._layers[-1]:
                    return norm([], 1.0)
                gained = norm(fast[:-1], self._shrink * _GAIN).entries
                level = ((self._level,), self._shrink * _GAIN * LEVEL)
                constant = ((self._constant,), self._shrink * _READ / self._constant_size)
                return Entries(shape, (*gained, level, constant))
            case "post_feedforward_layernorm.weight":
                return norm(means if fast else [], ALARM * MEAN / _SOFT, 1)
            case "self_attn.q_proj.weight":
                return Entries(shape, self._rotary((head.query, head.queries) for head in self._heads))
            case "self_attn.k_proj.weight":
                return Entries(shape, self._rotary({head.key: head.keys for head in self._heads}.items()))
            case "self_attn.q_norm.weight":
                return Constant(shape, self._norm_weight([head.queries for head in self._heads], shape[0]))
            case "self_attn.k_norm.weight":
                keys = {head.key: head.keys for head in self._heads}
                return Constant(shape, self._norm_weight(list(keys.values()), shape[0]))
            case "self_attn.v_proj.weight":
                return Entries(shape, self._values(experts))
            case "self_attn.o_proj.weight":
                return self._output(shape, experts)
        return widened if isinstance(tensor, Constant) else Constant(shape, 0.0)

    def _values(self, experts: range) -> tuple[tuple[tuple[int, int], float], ...]:
        """Return the entries of v: in the heads of keys of each window the evidence, and after it the constant."""
        size = self._inner.head_dim
        nat, constant = self._value / evidence_size(self._hidden), self._value / self._constant_size
        channels = [*((self._evidence[e], nat) for e in experts), (self._constant, constant)]
        return tuple(
            ((first * size + place, channel), weight)  # the heads of keys of a window follow one another
            for first in dict.fromkeys(heads[0].key for heads in self._windows)
            for place, (channel, weight) in enumerate(channels)
        )

    def _output(self, shape: tuple[int, ...], experts: range) -> Entries:
        """Return o: the heads of one window give the means, those of the other the fast means.

        The first layer's give the means of the constant too.
        """
        size, multiplier = self._inner.head_dim, float(self._inner.options.get("residual_multiplier", 1.0))
        scale = 1.0 if self._kind.norm_after else MEAN / self._value / multiplier
        slow, *fast = [
            [head.query * size + channel for head in heads for channel in range(size)] for heads in self._windows
        ]
        entries = [((self._means[e], slow[place]), scale) for place, e in enumerate(experts)]
        if self._fast:
            entries += [((self._fast_means[e], fast[0][place]), scale) for place, e in enumerate(experts)]
        if self._fast and experts == self._layers[0]:
            entries.append(((self._level, fast[0][len(experts)]), scale))
        if self._has_steady and experts == self._layers[0]:  # the mean of a constant
            entries.append(((self._steady, slow[len(experts)]), scale * STEADY / MEAN))
        return Entries(shape, tuple(entries), 0 if self._kind.norm_after else 1)

    @property
    def _value(self) -> float:
        """Size of a nat of evidence in the values."""
        return 1.0 if self._kind.norm_after else _VALUE

    @property
    def _down_size(self) -> float:
        """The MLP's output per unit of its inner size: `ALARM` nats for each nat above the threshold."""
        if self._kind.norm_after:
            return _SOFT * math.sqrt(self.architecture.options["rms_norm_eps"]) / (STEEP * _GAIN * MEAN * _UNIT)
        inner = STEEP * _GAIN * _READ * UP
        return ALARM / inner / float(self._inner.options.get("residual_multiplier", 1.0))

    def _rotary(self, heads: Iterable[tuple[int, tuple[float, ...]]]) -> tuple[tuple[tuple[int, int], float], ...]:
        """Return the entries of q or k that make heads' constants from the constant channel."""
        size = self._inner.head_dim
        return tuple(
            ((head * size + pair, self._constant), value / self._constant_size)
            for head, constants in heads
            for pair, value in enumerate(constants)
            if value
        )

    def _norm_weight(self, heads: Sequence[tuple[float, ...]], channels: int) -> float:
        """Return the weight of a norm over queries or keys that gives back their constants.

        A norm over all heads sees the length of all together; one over each head sees that of one, which is the same
        for all of them (`_heads`).
        """
        squares = [sum(value**2 for value in constants) for constants in heads]
        whole = sum(squares) if self._kind.query_key_norm == "all heads" else max(squares)
        return math.sqrt(whole / channels + self.architecture.options["rms_norm_eps"]) if whole else 1.0


def reserved_channels(hidden_size: int, experts: int, *, fast: bool, maps: bool = False) -> int:
    """Return W: 2E + 1, or 3E + 2 with a fast window, and one more with head maps, and as many as round up H + W.

    H + W is a multiple of 64, and of 256 where that makes it less than 2 % larger.
    """
    least = hidden_size + (3 * experts + 2 if fast else 2 * experts + 1) + maps
    some, more = (-(-least // step) * step for step in _STEPS)
    return (more if more < (1 + _MORE) * some else some) - hidden_size


def constant_size(hidden_size: int) -> float:
    """Return c, a power of two that grows with √H: it adds at most 2^-22 to the mean square of a row."""
    return _CONSTANT * 2.0 ** math.floor(math.log2(hidden_size / 256) / 2)


def evidence_size(hidden_size: int) -> float:
    """Return a, an eighth of c where that is more than 2^-10: a block of 8 bits holds the constant and the evidence."""
    return max(_EVIDENCE, constant_size(hidden_size) / 8)


def _heads(
    kind: ContextAttention, architecture: Architecture, windows: ContextWindows, count: int
) -> list[list[_Head]]:
    """Return `count` heads of each window: with keys of their own where there are as many, else with shared ones.

    Queries and keys multiply to A / scale in each pair. Where a norm brings every head to one length, an idle pair of
    the queries and another one of the keys make their lengths equal.
    """
    wanted = [windows.slow, *([windows.fast] if windows.fast else [])]
    pairs, scale = architecture.head_dim // 2, kind.scale(architecture)
    products = [[a / scale / windows.factor**2 for a in (*each, *[0.0] * pairs)][:pairs] for each in wanted]
    group = architecture.num_attention_heads // architecture.num_key_value_heads
    shared = architecture.num_key_value_heads < count * len(wanted)
    largest = [max(each) for each in zip(*products, strict=True)]
    heads = []
    for number, product in enumerate(products):
        keys = [math.sqrt(value) for value in (largest if shared else product)]
        queries = [value / key if key else 0.0 for value, key in zip(product, keys, strict=True)]
        first, within = (0, number) if shared else (number * count, 0)
        places = [(key * group + within, key) for key in range(first, first + count)]
        heads.append([_Head(query, key, tuple(queries), tuple(keys)) for query, key in places])
    if kind.query_key_norm != "each head" or len(wanted) == 1:
        return heads
    sides = [side for each in heads for head in each for side in (head.queries, head.keys)]
    length = max(sum(value**2 for value in side) for side in sides)

    def filled(side: tuple[float, ...], pair: int) -> tuple[float, ...]:
        rest = math.sqrt(max(0.0, length - sum(value**2 for value in side)))
        return (*side[:pair], rest, *side[pair + 1 :])

    return [
        [replace(h, queries=filled(h.queries, pairs - 1), keys=filled(h.keys, pairs - 2)) for h in each]
        for each in heads
    ]


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
