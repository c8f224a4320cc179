"""The expert of each token in each layer, for a refit: found by routers that the refit solves, or known beforehand.

Shapes: E members, H hidden size; N windows of S tokens for one member, of which a batch holds b.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.composition.plan import Plan
from registry.composition.tensor_source import RouterSolver
from registry.families.sites import MLP_INPUT
from registry.io.torch_blocks import torch_dtype
from registry.maths.limbs import Splitter
from registry.maths.statistics import PackedStatistics, Statistics, complete_folds
from registry.member import Member
from registry.statistics.accumulator import RunningSums
from registry.statistics.scales import Scales, scales
from registry.statistics.site_sums import fold_of_window


@runtime_checkable
class Choice(Protocol):
    """The expert of each token of each member's text, layer by layer.

    A refit counts all batches of a layer, in order, then calls `solve`, and then asks for the experts.
    """

    @property
    def routers(self) -> RouterSolver | None:
        """The routers that result; None where those of the composition stay."""

    def count(self, layer: int, member: int, first: int, mlp_input: Float[Tensor, "b S H"]) -> None:
        """Count the MLP inputs of a batch of a member's windows, of which `first` is the first."""

    def solve(self, layer: int) -> None:
        """Decide where the tokens of a layer go, after all its batches were counted."""

    def experts(self, layer: int, member: int, first: int, mlp_input: Float[Tensor, "b S H"]) -> Int64[Tensor, "b S"]:
        """Return the number of the expert that each token of a batch goes to."""


class KnownChoice:
    """Experts that are a function of the text alone, and the same in all layers: no router is solved.

    Args:
        experts: of each member's text, the number of each token's expert, (N, S); members may differ in both.
    """

    routers: RouterSolver | None = None

    def __init__(self, experts: Sequence[Int64[Tensor, "_ _"]]) -> None:
        self._experts = list(experts)

    def count(self, layer: int, member: int, first: int, mlp_input: Float[Tensor, "b S H"]) -> None:
        """Count nothing."""

    def solve(self, layer: int) -> None:
        """Solve nothing."""

    def experts(self, layer: int, member: int, first: int, mlp_input: Float[Tensor, "b S H"]) -> Int64[Tensor, "b S"]:
        """Return the given experts."""
        return self._experts[member][first : first + len(mlp_input)]


class GateChoice:
    """Experts that the first choice of each layer's router gives, solved from the MLP inputs that the refit sees.

    Args:
        plan: the composition; its members have calibration tokens.
        composed: a dense folder of the composed trunk, which gives the scales.
    """

    def __init__(self, plan: Plan, composed: Checkpoint) -> None:
        self._plan, self._splitter = plan, Splitter()
        self._scales: Scales = scales(composed, MLP_INPUT)
        self._texts = [_FoldedText.of(member) for member in plan.members]
        self._sums: list[RunningSums] = []
        self._gate: Tensor | None = None
        self._statistics = [_LayerStatistics() for _ in plan.members]
        self.routers: RouterSolver | None = RouterSolver(plan, self._statistics)

    def count(self, layer: int, member: int, first: int, mlp_input: Float[Tensor, "b S H"]) -> None:
        """Add the tokens that count to the statistics of their folds.

        Raises:
            ValueError: an activation is NaN or infinite.
        """
        if not self._sums:
            exponents, bits = self._scales.exponents[layer], self._scales.bits
            self._sums = [RunningSums(exponents, bits, text.count, self._splitter) for text in self._texts]
        text, windows = self._texts[member], slice(first, first + len(mlp_input))
        runs = [text.runs(windows, fold) for fold in range(text.count)]  # of the rows (b · S, H) that count
        self._sums[member].add(mlp_input.flatten(0, 1), runs, windows.stop)

    def solve(self, layer: int) -> None:
        """Solve the layer's router; its statistics are then dropped."""
        assert self.routers is not None
        for statistics, sums in zip(self._statistics, self._sums, strict=True):
            total, folds = sums.statistics()
            statistics.layer, statistics.parts = layer, complete_folds(total, folds)
        self._sums = []
        self.routers.keep_gate(layer)  # and with it the curve of lam
        for statistics in self._statistics:
            statistics.parts = ()
        # Routed as the written model will route: the gate (E, H) rounded to its dtype, and the first choice alone.
        gate = self.routers.gate(layer) / self._plan.recipe.temperature
        self._gate = gate.to(torch_dtype(self._plan.dtype)).float()

    def experts(self, layer: int, member: int, first: int, mlp_input: Float[Tensor, "b S H"]) -> Int64[Tensor, "b S"]:
        """Return the first choice of the layer's router."""
        assert self._gate is not None
        chosen: Tensor = (mlp_input @ self._gate.T).argmax(dim=-1)  # (b, S, E) → (b, S)
        return chosen


@dataclass(frozen=True)
class _FoldedText:
    """The tokens of one member that count, by fold.

    Attributes:
        keep: True for the tokens that count, (N, S).
        folds: the fold of each window, (N,).
        count: how many folds there are.
    """

    keep: Bool[Tensor, "N S"]
    folds: Int64[Tensor, "N"]
    count: int

    @classmethod
    def of(cls, member: Member) -> "_FoldedText":
        """Return the text of a member, in the folds that its statistics have."""
        calibration = member.calibration
        assert isinstance(calibration, Calibration)  # checked with the plan
        folds = fold_of_window(len(calibration.ids), int((member.content["computed"] or {}).get("folds", 1)))
        return cls(calibration.keep, folds, int(folds.max()) + 1)

    def runs(self, windows: slice, fold: int) -> list[slice]:
        """Return the rows of a fold that count among those of some windows: padding stands to the right."""
        lengths, width = self.keep[windows].sum(dim=1).tolist(), self.keep.shape[1]
        return [
            slice(number * width, number * width + length)
            for number, (length, of) in enumerate(zip(lengths, self.folds[windows].tolist(), strict=True))
            if of == fold and length
        ]


@dataclass
class _LayerStatistics:
    """A member's statistics of the layer that is being refitted; those of the layers before are not kept."""

    layer: int = -1
    parts: tuple[Statistics, ...] = ()

    def folds(self, site: str, layer: int) -> tuple[Statistics, ...]:
        """Return the statistics as folds."""
        assert (site, layer) == (MLP_INPUT, self.layer)
        return self.parts

    def statistics(self, site: str, layer: int) -> Statistics:
        """Return the sum of the folds."""
        total, *others = self.folds(site, layer)
        for other in others:
            total = total + other
        return total

    def packed_statistics(self, site: str, layer: int) -> PackedStatistics:
        """Return the sum of the folds, as statistics are stored."""
        total = self.statistics(site, layer)
        return PackedStatistics(total.packed(), total.exponents, total.saturated)
