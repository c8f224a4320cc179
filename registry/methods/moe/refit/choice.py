"""The expert of each token in each layer, for a refit: found by routers that the refit solves, or known beforehand.

Shapes: E members, H hidden size; N windows of S tokens for one member, of which a batch holds b.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float, Int64
from torch import Tensor

from registry.checkpoint import Checkpoint
from registry.composition.plan import Plan
from registry.families.sites import MLP_INPUT
from registry.io.torch_blocks import torch_dtype
from registry.maths.digits import Splitter
from registry.maths.statistics import PackedStatistics, Statistics
from registry.methods.moe.tensor_source import RouterSolver
from registry.statistics.scales import Scales, scales
from registry.statistics.site_sums import RunningSums


class Choice:
    """The expert of each token of each member's text, layer by layer.

    A refit counts all batches of a layer, in order, then calls `solve`, and then asks for the experts.
    """

    routers: RouterSolver | None = None
    """The routers that result; None where those of the composition stay."""

    def count(self, layer: int, member: int, first: int, mlp_input: Float[Tensor, "b S H"]) -> None:
        """Count the MLP inputs of a member's windows from `first` on (ValueError: an activation is NaN or infinite)."""

    def solve(self, layer: int) -> None:
        """Decide where the tokens of a layer go, after all its batches were counted."""

    @abstractmethod
    def experts(self, layer: int, member: int, first: int, mlp_input: Float[Tensor, "b S H"]) -> Int64[Tensor, "b S"]:
        """Return the number of the expert that each token of a batch goes to."""


class KnownChoice(Choice):
    """Experts that are a function of the text alone, and the same in all layers: no router is solved.

    `experts` has the number of each token's expert, (N, S), of each member's text; members may differ in both.
    """

    def __init__(self, experts: Sequence[Int64[Tensor, "_ _"]]) -> None:
        self._experts = list(experts)

    def experts(self, layer: int, member: int, first: int, mlp_input: Float[Tensor, "b S H"]) -> Int64[Tensor, "b S"]:
        return self._experts[member][first : first + len(mlp_input)]


class GateChoice(Choice):
    """Experts that the first choice of each layer's router gives, solved from the MLP inputs that the refit sees.

    Args:
        plan: the composition; its members have calibration tokens.
        composed: a dense folder of the composed trunk, which gives the scales.
    """

    def __init__(self, plan: Plan, composed: Checkpoint) -> None:
        self._plan, self._splitter = plan, Splitter()
        self._scales: Scales = scales(composed, MLP_INPUT)
        self._keeps = [member.kept_tokens.keep for member in plan.members]  # each (N, S)
        self._sums: list[RunningSums] = []
        self._gate: Tensor | None = None
        self._statistics = [_LayerStatistics() for _ in plan.members]
        self.routers: RouterSolver = RouterSolver(plan, self._statistics)

    def count(self, layer: int, member: int, first: int, mlp_input: Float[Tensor, "b S H"]) -> None:
        if not self._sums:
            exponents, bits = self._scales.exponents[layer], self._scales.bits
            self._sums = [RunningSums(exponents, bits, self._splitter) for _ in self._keeps]
        windows, width = slice(first, first + len(mlp_input)), mlp_input.shape[1]
        # Padding stands to the right, so the rows of a window that count, of (b · S, H), are one run.
        lengths = self._keeps[member][windows].sum(dim=1).tolist()
        runs = [slice(number * width, number * width + length) for number, length in enumerate(lengths) if length]
        self._sums[member].add(mlp_input.flatten(0, 1), runs, windows.stop)

    def solve(self, layer: int) -> None:
        for statistics, sums in zip(self._statistics, self._sums, strict=True):
            statistics.held = sums.statistics()
        self._sums = []
        self.routers.keep_gate(layer)
        for statistics in self._statistics:
            statistics.held = None
        # Routed as the written model will route: the gate (E, H) rounded to its dtype, and the first choice alone.
        gate = self.routers.gate(layer) / self._plan.recipe.temperature
        self._gate = gate.to(torch_dtype(self._plan.dtype)).float()

    def experts(self, layer: int, member: int, first: int, mlp_input: Float[Tensor, "b S H"]) -> Int64[Tensor, "b S"]:
        assert self._gate is not None
        chosen: Tensor = (mlp_input @ self._gate.T).argmax(dim=-1)  # (b, S, E) → (b, S)
        return chosen


@dataclass
class _LayerStatistics:
    """A member's statistics of the layer that is being refitted; those of the layers before are not kept."""

    held: Statistics | None = None

    def packed_statistics(self, site: str, layer: int) -> PackedStatistics:
        """Return the statistics as they are stored."""
        assert self.held is not None
        return PackedStatistics(self.held.packed(), self.held.exponents, self.held.saturated)
