"""The MLP of a context layer: it compares the fast mean with thresholds, and changes the mean that routers read.

One activation for each comparison, of the expert e and, where there is room for E² of them, another expert n:

    (e, e)    max(0, f_e − θ_ee)           the last tokens are clearly of e: times `ALARM`, added to m_e
    (e, n)    max(0, f_n − f_e − θ_en)     they are clearly not of e, as n is far ahead: times `ALARM`, subtracted

Gate rows read a large multiple of a difference, at which the activation is nearly max(0, z), and a constant channel for
the threshold; up rows read a constant; down columns write to the channels of the means.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from registry.hosts.architecture import Architecture
from registry.hosts.tensors import Entries

ALARM = 32.0
"""What evidence beyond a threshold counts, against the mean evidence."""

STEEP = 2.0**15
"""How steeply the activation rises: so much that it is nearly max(0, z)."""

LEVEL = 8.0
"""What a norm before the MLP multiplies the constant by, against the fast mean: thresholds stay within float16."""

UP = 2.0**-3
"""What up rows multiply the constant by, where a norm leads the MLP.

The smaller it is, the larger down weights are: an eighth of an embedding's row here, so that the float16 scales of
blocks of 4 to 8 bits hold them. Much less, and a scale shared with gate rows would lose it.
"""

_Entries = list[tuple[tuple[int, ...], float]]
_Thresholds = list[tuple[tuple[int, ...], tuple[int, int], float]]


def compares(architecture: Architecture, experts: int) -> bool:
    """Return whether a host's MLP has room to compare each pair of experts: E² activations."""
    return experts**2 <= architecture.intermediate_size


@dataclass(frozen=True)
class ContextMlp:
    """The experts of a context layer, which are all alike.

    Attributes:
        norm_after: norms follow the MLP instead of leading it.
        means, fast, level: channels of m_e and of f_e of each expert, and of the constant beside them.
        constant: channel of the constant that up rows read, and their weight.
        size: the output for an excess of one nat, per unit of the activations.
    """

    pairs: bool
    norm_after: bool
    means: Sequence[int]
    fast: Sequence[int]
    level: int
    constant: tuple[int, float]
    size: float

    def projection(self, projection: str, shape: tuple[int, ...]) -> Entries:
        """Return one projection of the experts (`projection_of`); where its shape has three axes, they are stacked."""
        entries: _Entries
        thresholds: _Thresholds = []
        power = 0
        if projection == "down":
            signs = ((row, e, 1.0 if n == e else -1.0) for row, (e, n) in enumerate(self._comparisons))
            entries = [((self.means[e], row), sign * self.size) for row, e, sign in signs]
            power = 0 if self.norm_after else 1
        elif projection == "up":
            entries = self._up()
        else:
            (entries, thresholds), power = self._gate(), -1 if self.norm_after else 0
        if projection == "gate_up":  # gate rows above up rows; no host with norms after the MLP has this layout
            entries += [((shape[1] // 2 + row, channel), value) for (row, channel), value in self._up()]
        if len(shape) == 3:
            everyone = range(shape[0])
            entries = [((expert, *index), value) for expert in everyone for index, value in entries]
            thresholds = [((expert, *index), pair, value) for expert in everyone for index, pair, value in thresholds]
        return Entries(shape, tuple(entries), power, tuple(thresholds))

    @property
    def _comparisons(self) -> list[tuple[int, int]]:
        everyone = range(len(self.means))
        return [(e, n) for e in everyone for n in everyone if self.pairs or e == n]

    def _gate(self) -> tuple[_Entries, _Thresholds]:
        entries: _Entries = []
        thresholds: _Thresholds = []
        level = STEEP if self.norm_after else STEEP / LEVEL
        for row, (e, n) in enumerate(self._comparisons):
            entries.append(((row, self.fast[n]), STEEP))
            if n != e:
                entries.append(((row, self.fast[e]), -STEEP))
            thresholds.append(((row, self.level), (e, n), -level))
        return entries, thresholds

    def _up(self) -> _Entries:
        channel, weight = self.constant
        return [((row, channel), weight) for row in range(len(self._comparisons))]
