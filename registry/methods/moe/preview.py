"""Preview of a composition's routing from statistics or counts: accuracy, confusion, overlap, drowned experts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

import torch

from registry.composition.plan import Plan
from registry.errors import InvalidInputError
from registry.families.sites import MLP_INPUT
from registry.maths.confusion import composed_confusion, predicted_confusion
from registry.maths.overlap import TOKENS_PER_DIRECTION, overlap
from registry.maths.router import COUNTS, OWN, ROUTERS
from registry.maths.statistics import Statistics
from registry.methods.moe.context.predicted_routing import INDISTINCT_COUNTS, predict_routing
from registry.methods.moe.tensor_source import RouterSolver, StoredSource
from registry.progress import Progress
from registry.registration.expert_overlap import INDISTINCT, compared_layers

DROWNED = 0.5
"""An expert is drowned out by the others if it gets less than this share of its own tokens."""

FEW = 0.5
"""Share of an even part in the solve: an expert with less is drowned because it brings few tokens."""

BY_COUNTS = (
    "An estimate, not a bound, from how often each expert’s text has each token: for text that keeps to one subject, "
    "after {tokens} tokens of it. No model runs. Measured later, on six sets of experts, the mean was typically 5 "
    "points higher or lower, and that of a single expert 7 points."
)
BY_MOMENTS = "An estimate, not a bound, from the mean and the spread of each expert’s activations. No model runs."
CORRECTED = (
    " Measured later, on six compositions, an expert’s was within 3 points of it, with one exception of 9. For experts "
    "of similar text it is far too high."
)
"""What a predicted routing accuracy is, and how far it was from a measured one (docs/report.md)."""

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class PreviewedMember:
    """One expert of a planned composition.

    Attributes:
        ref: the version.
        tokens: calibration tokens that it brings.
        part: its part in the routers' solve, from 0 to 1: tokens times weight, balanced if the recipe asks for it. With
            context routing every expert has the same part.
        accuracy: share of its tokens predicted to go to it first, mean over layers.
        share: share of all tokens predicted to go to it first, if every expert's text has as many.
        drowned: the reason why the expert is drowned out, or None.
    """

    ref: str
    tokens: int
    part: float
    accuracy: float
    share: float
    drowned: str | None


@dataclass(frozen=True)
class PreviewedLength:
    """The predicted routing of texts of which so many tokens were read.

    Attributes:
        tokens: the number of tokens.
        confusion: row by row, the shares of an expert's texts that go to each expert first.
    """

    tokens: int
    confusion: Matrix

    @property
    def accuracy(self) -> float:
        """Mean accuracy of the members."""
        return fmean(row[number] for number, row in enumerate(self.confusion))

    def document(self) -> dict[str, Any]:
        """Return every figure as `--json` shows it."""
        return {"tokens": self.tokens, "accuracy": self.accuracy, "confusion": self.confusion}


@dataclass(frozen=True)
class Preview:
    """The predicted routing of a composition.

    Attributes:
        members: in the order of the experts.
        layers: the layers that were compared (`compared_layers`): all of them, or some that are spread evenly. With
            context routing the first, which stands for all.
        confusion: for each of these layers, row by row, the shares of an expert's tokens that go to each expert first.
        overlap: pair of experts → share of tokens that a linear router cannot tell apart, mean over layers; without
            pairs of which one has too few tokens. With context routing, share of texts that counts cannot tell apart.
        notes: limits of the figures.
        by_tokens: the prediction by number of tokens read, for routers that read the text so far; else empty.
        means: what the predicted accuracy is, and how far it was from a measured one.
    """

    members: tuple[PreviewedMember, ...]
    layers: tuple[int, ...]
    confusion: tuple[Matrix, ...]
    overlap: dict[tuple[str, str], float]
    notes: tuple[str, ...] = ()
    by_tokens: tuple[PreviewedLength, ...] = ()
    means: str = ""

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
        least = INDISTINCT_COUNTS if self.by_tokens else INDISTINCT
        return tuple(pair for pair, share in self.overlap.items() if share >= least)

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
            "by_tokens": [length.document() for length in self.by_tokens],
            "notes": self.notes,
        }


def preview_plan(plan: Plan, progress: Progress) -> Preview:
    """Predict the routing of a plan (see `Registry.preview`).

    Raises:
        InvalidInputError: the plan has no routers, or they are not solved from experts' statistics, or cannot be.
        IncompatibleError: a member has token counts alone.
        DamagedError: a stored array is damaged.
    """
    recipe = plan.recipe
    method = ROUTERS[recipe.router]
    if recipe.to == "moe" and method.features == COUNTS:
        return _by_context(plan, progress)
    if recipe.to != "moe" or method.features not in (OWN, None):
        option = f"--to {recipe.to}" if recipe.to != "moe" else f"--router {recipe.router}"
        raise InvalidInputError(
            f"{option} has no router that can be predicted from the experts' statistics",
            "preview --router ridge, or compose it and run: reg evaluate moe/ --data code=FILE",
        )
    for member in plan.members:
        member.require_statistics([MLP_INPUT], "a preview", "needs")
    routers, layers = StoredSource(plan).routers, compared_layers(plan.lead.architecture.num_hidden_layers)
    confusion, shared = [], dict[tuple[str, str], list[float]]()
    refs = [member.version.ref for member in plan.members]
    weights = routers.weights if method.features else plan.weights
    with progress("predicting", len(layers), "layer") as advance:
        for layer in layers:
            statistics = [routers.statistics(member, layer) for member in range(len(refs))]
            confusion.append(_confusion(plan, routers, layer, statistics, weights))
            for pair, share in _overlaps(layer, refs, statistics):
                shared.setdefault(pair, []).append(share)
            advance(1)
    counts = [routers.statistics(member, 0).count for member in range(len(refs))]
    overlaps = {pair: fmean(shares) for pair, shares in shared.items()}
    members = _members(refs, counts, _parts(counts, weights), _mean(confusion), overlaps)
    means = BY_MOMENTS + (CORRECTED if method.features == OWN else "")
    return Preview(members, tuple(layers), tuple(confusion), overlaps, tuple(_notes(plan, layers)), means=means)


def _by_context(plan: Plan, progress: Progress) -> Preview:
    """Return the preview of context routing, from counts alone."""
    predicted, refs = predict_routing(plan, progress), [member.version.ref for member in plan.members]
    by_tokens = tuple(
        PreviewedLength(tokens, _matrix(matrix.tolist())) for tokens, matrix in predicted.confusion.items()
    )
    confusion = next(length.confusion for length in by_tokens if length.tokens == predicted.typical)
    overlaps = {(refs[a], refs[b]): share for (a, b), share in predicted.overlap.items()}
    parts = [1 / len(refs)] * len(refs)
    members = _members(refs, predicted.tokens, parts, confusion, overlaps, INDISTINCT_COUNTS)
    note = (
        f"predicted from counts of tokens, after {predicted.typical} tokens of a text; all layers route alike, and so "
        "layer 0 stands for all"
    )
    means = BY_COUNTS.format(tokens=predicted.typical)
    return Preview(members, (0,), (confusion,), overlaps, (note,), by_tokens, means)


def _confusion(
    plan: Plan, routers: RouterSolver, layer: int, statistics: Sequence[Statistics], weights: Sequence[float]
) -> Matrix:
    recipe = plan.recipe
    if len(statistics) == 1:
        return ((1.0,),)
    try:
        if ROUTERS[recipe.router].features is None:
            confusion = predicted_confusion(routers.gate(layer), statistics, routers.bias(layer))
        else:
            confusion = composed_confusion(statistics, weights, recipe.lam, recipe.normalize)
    except ValueError as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(
            f"the routing of layer {layer} cannot be predicted: {error}", "raise lam, for example --lam 0.1"
        ) from error
    return _matrix(confusion.tolist())


def _matrix(rows: Sequence[Sequence[float]]) -> Matrix:
    """Return shares, which rounding may have left a little below 0 or above 1."""
    return tuple(tuple(min(max(share, 0.0), 1.0) for share in row) for row in rows)


def _overlaps(layer: int, refs: Sequence[str], statistics: Sequence[Statistics]) -> list[tuple[tuple[str, str], float]]:
    comparable = [number for number, item in enumerate(statistics) if item.count >= TOKENS_PER_DIRECTION]
    shares = []
    for a, b in combinations(comparable, 2):
        try:
            shares.append(((refs[a], refs[b]), overlap(statistics[a], statistics[b]).routing))
        except ValueError as error:  # forged or mistaken statistics
            raise InvalidInputError(
                f"{refs[a]} and {refs[b]} cannot be compared at layer {layer}: {error}",
                "make the statistics again (reg collect CKPT --data FILE --out DIR) and register it again",
            ) from error
    return shares


def _parts(counts: Sequence[int], weights: Sequence[float]) -> list[float]:
    total = sum(count * weight for count, weight in zip(counts, weights, strict=True))
    return [count * weight / total for count, weight in zip(counts, weights, strict=True)]


def _members(
    refs: Sequence[str],
    counts: Sequence[int],
    parts: Sequence[float],
    confusion: Matrix,
    overlaps: dict[tuple[str, str], float],
    indistinct: float = INDISTINCT,
) -> tuple[PreviewedMember, ...]:
    members = []
    for number, ref in enumerate(refs):
        part, row = parts[number], confusion[number]
        drowned = None
        if row[number] < DROWNED:
            taker = max((share, other) for other, share in enumerate(row) if other != number)[1]
            if part < FEW / len(refs):
                drowned = f"it brings {part:.1%} of the statistics that routers are solved from: try --balance tokens"
            elif max((s for pair, s in overlaps.items() if ref in pair), default=0.0) >= indistinct:
                drowned = f"its text is much like that of {refs[taker]}, which gets {row[taker]:.0%} of it"
            else:
                drowned = f"{refs[taker]} gets {row[taker]:.0%} of its tokens"
        share = fmean(shares[number] for shares in confusion)
        members.append(PreviewedMember(ref, counts[number], part, row[number], share, drowned))
    return tuple(members)


def _notes(plan: Plan, layers: Sequence[int]) -> list[str]:
    recipe, notes = plan.recipe, []
    if recipe.retakes or recipe.refine_mlp:
        notes.append("changes by passes of tokens (refine) are not predicted")
    if len(layers) < plan.lead.architecture.num_hidden_layers:
        notes.append(f"{len(layers)} of {plan.lead.architecture.num_hidden_layers} layers were compared")
    return notes


def _mean(matrices: Sequence[Matrix]) -> Matrix:
    mean: list[list[float]] = torch.tensor(matrices, dtype=torch.float64).mean(dim=0).tolist()
    return tuple(tuple(row) for row in mean)
