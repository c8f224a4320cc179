"""Preview of a composition's routing from statistics or counts: accuracy, confusion, overlap, drowned experts."""

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

from registry.composition.method import COUNTS, OWN
from registry.composition.plan import Plan
from registry.composition.preview import Matrix, Preview, PreviewedLength, PreviewedMember, mean
from registry.errors import InvalidInputError
from registry.families.sites import MLP_INPUT
from registry.maths.confusion import composed_confusion, predicted_confusion
from registry.maths.overlap import TOKENS_PER_DIRECTION, overlap
from registry.maths.statistics import Statistics
from registry.methods.moe.context.predicted_routing import INDISTINCT_COUNTS, predict_routing
from registry.methods.moe.recipe import retakes, router_of
from registry.methods.moe.refinement import SOLVES_AGAIN
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


def preview_plan(plan: Plan, progress: Progress) -> Preview:
    """Predict the routing of a plan (see `Registry.preview`).

    Raises:
        InvalidInputError: the plan has no routers, or they are not solved from experts' statistics, or cannot be.
        IncompatibleError: a member has token counts alone.
        DamagedError: a stored array is damaged.
    """
    method = router_of(plan.recipe)
    if method.statistics == COUNTS:
        return _by_context(plan, progress)
    if method.statistics not in (OWN, None):
        raise InvalidInputError(
            f"--router {method.name} has no router that can be predicted from the experts' statistics",
            f"preview --router {SOLVES_AGAIN}, or compose it and run: reg evaluate moe/ --data code=FILE",
        )
    for member in plan.members:
        member.require_statistics([MLP_INPUT], "a preview", "needs")
    routers, layers = StoredSource(plan).routers, compared_layers(plan.lead.architecture.num_hidden_layers)
    confusion, shared = [], dict[tuple[str, str], list[float]]()
    refs = [member.version.ref for member in plan.members]
    weights = routers.weights if method.statistics else plan.weights
    with progress("predicting", len(layers), "layer") as advance:
        for layer in layers:
            statistics = [routers.statistics(member, layer) for member in range(len(refs))]
            confusion.append(_confusion(plan, routers, layer, statistics, weights))
            for pair, share in _overlaps(layer, refs, statistics):
                shared.setdefault(pair, []).append(share)
            advance(1)
    counts = [routers.statistics(member, 0).count for member in range(len(refs))]
    overlaps = {pair: fmean(shares) for pair, shares in shared.items()}
    members = _members(refs, counts, _parts(counts, weights), mean(tuple(confusion)), overlaps)
    means = BY_MOMENTS + (CORRECTED if method.statistics == OWN else "")
    return Preview(
        members, tuple(layers), tuple(confusion), overlaps, tuple(_notes(plan, layers)), (), means, INDISTINCT
    )


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
    return Preview(members, (0,), (confusion,), overlaps, (note,), by_tokens, means, INDISTINCT_COUNTS)


def _confusion(
    plan: Plan, routers: RouterSolver, layer: int, statistics: Sequence[Statistics], weights: Sequence[float]
) -> Matrix:
    recipe = plan.recipe
    if len(statistics) == 1:
        return ((1.0,),)
    try:
        if router_of(recipe).statistics is None:
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
    if retakes(recipe) or recipe.refine_mlp:
        notes.append("changes by passes of tokens (refine) are not predicted")
    if len(layers) < plan.lead.architecture.num_hidden_layers:
        notes.append(f"{len(layers)} of {plan.lead.architecture.num_hidden_layers} layers were compared")
    return notes
