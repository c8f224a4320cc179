"""The last layer of a composition with head maps: MLPs that add M_e n to the stream, e the expert of the token.

n is the stream over its own size: n = x / ρ, ρ = √(x's mean square). Attention adds nothing. The last norm then sees
x + ρ M_e n, so that the shared head gives nearly the logits of the expert's own (`registry.maths.context.head_map`).

Where a norm comes before the MLP, it gives n and not ρ. ρ comes back through a reserved channel with the same value
everywhere, c = ρ̄ / 32, with ρ̄ the size of the embedding's mean row: after the norm it is u = ρ̄ / ρ, and inner channel
(j, k) of the MLP is

    silu(−α_j u) · (V_kᵀ n)       α_j = 2 · 5^j,   j = 0 … 6

With b(z) = z² / (1 + e^z), −α silu(−α u) = b(α u) / u. Along ln z, b is a bump with the area π²/12, so that bumps ln 5
apart add up to π² / (12 ln 5) within 17 %, from ρ = ρ̄ to 15,000 ρ̄, and the down projection gets ρ from 1/u. With gelu
the area is 1/4, and the sum is within 30 % from 1.5 ρ̄ on.

Where a norm comes after the MLP, the MLP reads x itself. Its output is so small that the norm's epsilon outweighs it,
and the norm is linear.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from registry.hosts.architecture import Architecture
from registry.hosts.host import ContextAttention
from registry.hosts.tensors import Constant, Entries, Experts, HeadMap, Made

STEADY = 2.0**-5
"""Size of the channel with the same value everywhere, relative to the embedding's mean row."""

_AREAS = dict.fromkeys(("silu", "swish"), math.pi**2 / 12) | dict.fromkeys(
    ("gelu", "gelu_new", "gelu_pytorch_tanh"), 0.25
)
"""Activation → ∫ z |act(−z)| d ln z; other activations have no bump."""

_RATIO, _FIRST, _LEVELS = 5.0, 2.0, 7
"""α_j = first · ratio^j."""

_SMALL = 2.0**-14
"""Output of the MLP where a norm follows, for a map's output of the size 1."""


def holds_maps(kind: ContextAttention, architecture: Architecture) -> bool:
    """Return whether a host's MLP can hold head maps: it takes inner channels for each level, and a bump."""
    return _rank(kind, architecture) > 0 and (kind.norm_after or architecture.hidden_act in _AREAS)


def _rank(kind: ContextAttention, architecture: Architecture) -> int:
    levels = 1 if kind.norm_after else _LEVELS
    return min(architecture.hidden_size, architecture.intermediate_size // levels)


def is_down(tensor: Experts, hidden_size: int) -> bool:
    """Tell whether a tensor of experts holds their down projections, which have the stream in their rows."""
    return tensor.shape[-2] == hidden_size and tensor.parts[0][1].name.endswith("down_proj.weight")


def projection_of(name: str, tensor: Experts, hidden_size: int) -> str:
    """Return the projection that a tensor of experts holds: `gate`, `up`, `down`, or `gate_up` if they are stacked."""
    if is_down(tensor, hidden_size):
        return "down"
    if len(tensor.shape) == 3:
        return "gate_up"
    return "up" if name.endswith((".w3.weight", ".up_proj.weight")) else "gate"


@dataclass(frozen=True)
class HeadMapLayer:
    """The tensors of the last layer.

    Attributes:
        architecture: of the composition without added layers.
        shrink: √(H / H′), for the channels of the widened stream.
        steady, steady_size: the channel with the same value everywhere, and that value where a norm follows the MLP.
        read: channels that routers read.
    """

    kind: ContextAttention
    architecture: Architecture
    shrink: float
    steady: int
    steady_size: float
    read: Sequence[int]

    def trunk(self, below: str, widened: Made) -> Made:
        """Return the trunk tensor of a name below the layer; `widened` is that of another layer, widened."""
        shape, size = widened.shape, self.architecture.hidden_size
        if below == "post_attention_layernorm.weight" and not self.kind.norm_after:
            entries = [((channel,), self.shrink) for channel in (*range(size), *self.read)]
            return Entries(shape, (*entries, ((self.steady,), self.shrink / STEADY)))
        if below == "post_feedforward_layernorm.weight":
            epsilon = float(self.architecture.options["rms_norm_eps"]) * self.shrink**2
            return Entries(shape, tuple(((channel,), math.sqrt(epsilon) / _SMALL) for channel in range(size)))
        return widened if isinstance(widened, Constant) else Constant(shape, 0.0)

    def experts(self, name: str, tensor: Experts, shape: tuple[int, ...]) -> HeadMap:
        """Return a tensor of experts, given that of another layer, its name, and its shape when widened."""
        return HeadMap(
            shape,
            tuple(range(shape[0])) if len(shape) == 3 else (tensor.parts[0][0],),
            projection_of(name, tensor, self.architecture.hidden_size),
            self.architecture.hidden_size,
            _rank(self.kind, self.architecture),
            self._levels,
            self.steady,
            0 if self.kind.norm_after else 1,
        )

    @property
    def _levels(self) -> tuple[tuple[float, float], ...]:
        if self.kind.norm_after:
            gate = 32.0  # silu and gelu of it are 32
            return ((gate / self.steady_size, _SMALL / gate),)
        area = _AREAS[self.architecture.hidden_act] * float(self.architecture.options.get("residual_multiplier", 1.0))
        steps = [_FIRST * _RATIO**level for level in range(_LEVELS)]
        return tuple((-step, -step * math.log(_RATIO) / area) for step in steps)
