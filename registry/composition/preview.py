"""What a composition's routers will do, foretold from statistics: accuracy, confusion, overlap, who is drowned out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

import torch

from registry.composition.plan import Plan
from registry.composition.tensor_source import RouterSolver, StoredSource
from registry.errors import InvalidInputError
from registry.maths.confusion import composed_confusion, predicted_confusion
from registry.maths.overlap import TOKENS_PER_DIRECTION, overlap
from registry.maths.router import OWN, ROUTERS
from registry.maths.statistics import Statistics
from registry.progress import Progress
from registry.registration.expert_overlap import INDISTINCT, compared_layers

DROWNED = 0.5
"""An expert that less than this share of its own tokens reaches is drowned out by the others."""

FEW = 0.5
"""Of an even part in the solve: with less, few tokens are what an expert is drowned by."""

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class PreviewedMember:
    """One expert of a composition to be.

    Attributes:
        ref: the version.
        tokens: calibration tokens that it brings.
        part: its part in the routers' solve, of 1: tokens times weight, balanced where the recipe says so.
        accuracy: share of its tokens predicted to go to it first, mean over layers.
        share: of all tokens, where each expert's text has as many, predicted to go to it first.
        drowned: why it is, or None where it is not.
    """

    ref: str
    tokens: int
    part: float
    accuracy: float
    share: float
    drowned: str | None


@dataclass(frozen=True)
class Preview:
    """What is foretold of a composition.

    Attributes:
        members: in the order of the experts.
        layers: those that were looked at: all of them up to `overlapping.LAYERS`, else so many, spread evenly.
        confusion: for each of these, row by row, the shares of an expert's tokens that go to each expert first.
        overlap: pair of experts → share of tokens that a linear router cannot tell apart, mean over layers; without
            pairs of which one has too few tokens.
        notes: what the figures leave out.
    """

    members: tuple[PreviewedMember, ...]
    layers: tuple[int, ...]
    confusion: tuple[Matrix, ...]
    overlap: dict[tuple[str, str], float]
    notes: tuple[str, ...] = ()

    @property
    def refs(self) -> tuple[str, ...]:
        """The versions, in the order of the experts."""
        return tuple(member.ref for member in self.members)

    @property
    def mean_confusion(self) -> Matrix:
        """The confusion, mean over layers."""
        return _mean(self.confusion)

    @property
    def accuracy(self) -> float:
        """Mean accuracy of the members."""
        return fmean(member.accuracy for member in self.members)

    @property
    def indistinct(self) -> tuple[tuple[str, str], ...]:
        """Pairs that routing will hardly tell apart."""
        return tuple(pair for pair, share in self.overlap.items() if share >= INDISTINCT)

    def document(self) -> dict[str, Any]:
        """Return every figure as `--json` shows it."""
        return {
            "members": [vars(member) for member in self.members],
            "accuracy": self.accuracy,
            "confusion": self.mean_confusion,
            "layers": [
                {"layer": layer, "confusion": matrix} for layer, matrix in zip(self.layers, self.confusion, strict=True)
            ],
            "overlap": [{"experts": pair, "routing": share} for pair, share in self.overlap.items()],
            "notes": self.notes,
        }


def preview_plan(plan: Plan, progress: Progress) -> Preview:
    """Return what is foretold of a plan (see `Registry.preview`).

    Raises:
        InvalidInputError: it has no routers, they are not solved from experts' statistics, or cannot be.
        DamagedError: statistics are not what was stored.
    """
    recipe = plan.recipe
    method = ROUTERS[recipe.router]
    if recipe.to != "moe" or method.features not in (OWN, None):
        what = f"--to {recipe.to}" if recipe.to != "moe" else f"--router {recipe.router}"
        raise InvalidInputError(
            f"{what} has no router that statistics of experts foretell",
            "preview --router ridge, or compose it and run: reg evaluate moe/ --data code=FILE",
        )
    routers, layers = StoredSource(plan).routers, compared_layers(plan.lead.architecture.num_hidden_layers)
    confusion, shared = [], dict[tuple[str, str], list[float]]()
    refs = [member.version.ref for member in plan.members]
    weights = routers.weights if method.features else plan.weights
    with progress("foreseeing", len(layers), "layer") as advance:
        for layer in layers:
            taken = [routers.statistics(member, layer) for member in range(len(refs))]
            confusion.append(_confusion(plan, routers, layer, taken, weights))
            for pair, share in _overlaps(layer, refs, taken):
                shared.setdefault(pair, []).append(share)
            advance(1)
    counts = [routers.statistics(member, 0).count for member in range(len(refs))]
    overlaps = {pair: fmean(shares) for pair, shares in shared.items()}
    members = _members(refs, counts, weights, _mean(confusion), overlaps)
    return Preview(members, tuple(layers), tuple(confusion), overlaps, tuple(_notes(plan, layers)))


def _confusion(
    plan: Plan, routers: RouterSolver, layer: int, taken: Sequence[Statistics], weights: Sequence[float]
) -> Matrix:
    recipe = plan.recipe
    if len(taken) == 1:
        return ((1.0,),)
    try:
        if ROUTERS[recipe.router].features is None:
            found = predicted_confusion(routers.gate(layer), taken)
        else:
            found = composed_confusion(taken, weights, routers.lam(layer), recipe.normalize)
    except ValueError as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(
            f"the routing of layer {layer} cannot be foreseen: {error}", "raise lam, for example --lam 0.1"
        ) from error
    rows: list[list[float]] = found.clamp(0, 1).tolist()
    return tuple(tuple(row) for row in rows)


def _overlaps(layer: int, refs: Sequence[str], taken: Sequence[Statistics]) -> list[tuple[tuple[str, str], float]]:
    comparable = [number for number, item in enumerate(taken) if item.count >= TOKENS_PER_DIRECTION]
    found = []
    for a, b in combinations(comparable, 2):
        try:
            found.append(((refs[a], refs[b]), overlap(taken[a], taken[b]).routing))
        except ValueError as error:  # forged or mistaken statistics
            raise InvalidInputError(
                f"{refs[a]} and {refs[b]} cannot be compared at layer {layer}: {error}",
                "make the statistics again (reg collect CKPT --data FILE --out DIR) and register it anew",
            ) from error
    return found


def _members(
    refs: Sequence[str],
    counts: Sequence[int],
    weights: Sequence[float],
    confusion: Matrix,
    overlaps: dict[tuple[str, str], float],
) -> tuple[PreviewedMember, ...]:
    total = sum(count * weight for count, weight in zip(counts, weights, strict=True))
    members = []
    for number, ref in enumerate(refs):
        part, row = counts[number] * weights[number] / total, confusion[number]
        drowned = None
        if row[number] < DROWNED:
            taker = max((share, at) for at, share in enumerate(row) if at != number)[1]
            if part < FEW / len(refs):
                drowned = f"it brings {part:.1%} of what the routers are solved from: try --balance tokens"
            elif max((s for pair, s in overlaps.items() if ref in pair), default=0.0) >= INDISTINCT:
                drowned = f"its text is much like that of {refs[taker]}, which gets {row[taker]:.0%} of it"
            else:
                drowned = f"{refs[taker]} gets {row[taker]:.0%} of its tokens"
        share = fmean(other[number] for other in confusion)
        members.append(PreviewedMember(ref, counts[number], part, row[number], share, drowned))
    return tuple(members)


def _notes(plan: Plan, layers: Sequence[int]) -> list[str]:
    recipe, notes = plan.recipe, []
    if recipe.retakes or recipe.refine_mlp:
        notes.append("what passes of tokens change (refine, token weights) is not foreseen")
    if len(layers) < plan.lead.architecture.num_hidden_layers:
        notes.append(f"{len(layers)} of {plan.lead.architecture.num_hidden_layers} layers were looked at")
    return notes


def _mean(matrices: Sequence[Matrix]) -> Matrix:
    mean: list[list[float]] = torch.tensor(matrices, dtype=torch.float64).mean(dim=0).tolist()
    return tuple(tuple(row) for row in mean)
