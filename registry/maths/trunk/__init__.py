"""Trunk methods: one file a method, one line a method in `TRUNKS`.

A method combines the members' tensors of one name into one, yielding its rows in float64 (`tensor.Combination`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from registry.maths.trunk.base import base
from registry.maths.trunk.combination import Combination
from registry.maths.trunk.dare import dare
from registry.maths.trunk.mean import mean
from registry.maths.trunk.regmean import regmean, regmean_together
from registry.maths.trunk.task_arithmetic import task_arithmetic
from registry.maths.trunk.ties import ties


@dataclass(frozen=True)
class TrunkMethod:
    """One method of combining the members' trunks.

    Attributes:
        combine: see the module.
        needs_base: the base model takes part, so one must be registered.
        needs_members: the members' own tensors take part.
        needs_inputs: so do statistics of each linear map's input, and token counts.
        tiled: tensors without statistics of an input are combined by `tiles`, whatever rows a pass gives at once.
        together: the same for several linear maps of one input, which is cheaper than one by one; each yielded with
            its number, in their order, to the same bits.
        options: its parameters and their defaults.
    """

    combine: Callable[[Combination], Iterator[Tensor]]
    needs_base: bool = False
    needs_members: bool = True
    needs_inputs: bool = False
    tiled: bool = False
    together: Callable[[Sequence[Combination]], Iterator[tuple[int, Tensor]]] | None = None
    options: Mapping[str, float] = field(default_factory=dict)


TRUNKS = {
    "regmean": TrunkMethod(regmean, needs_inputs=True, tiled=True, together=regmean_together, options={"alpha": 1.0}),
    "mean": TrunkMethod(mean, tiled=True),
    "base": TrunkMethod(base, needs_base=True, needs_members=False),
    "ties": TrunkMethod(ties, needs_base=True, options={"density": 0.8, "scale": 1.0}),
    "dare": TrunkMethod(dare, needs_base=True, options={"density": 0.8, "scale": 1.0}),
    "task-arithmetic": TrunkMethod(task_arithmetic, needs_base=True, options={"scale": 0.3}),
}
"""Name in a recipe → the method; the default one first."""

__all__ = ["TRUNKS", "Combination", "TrunkMethod"]
