"""Predicted routing of a mixture, from statistics or counts of tokens: no weight is read, no model runs.

A preview has accuracy, confusion and overlap of the members; a plan warns of members that it would hardly use.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import fmean

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from registry.composition.method import COUNTS, OWN
from registry.composition.plan import Plan, PlanWarning
from registry.composition.preview import Matrix, Preview, PreviewedLength, PreviewedMember, mean
from registry.composition.taken_files import chat_marks, chat_template
from registry.errors import InvalidInputError, RegError
from registry.families.sites import MLP_INPUT
from registry.maths.confusion import composed_confusion, predicted_confusion
from registry.maths.context.evidence import EvidenceMoments, token_shares
from registry.maths.overlap import TOKENS_PER_DIRECTION, overlap
from registry.maths.statistics import Statistics
from registry.methods.moe.context import evidence_of, past_weights, shares_of
from registry.methods.moe.options import SOLVES_AGAIN
from registry.methods.moe.output import retakes, router_of
from registry.methods.moe.plan import statistics_weights
from registry.methods.moe.tensor_source import RouterSolver
from registry.progress import Progress, silent
from registry.registration.expert_overlap import INDISTINCT, compared_layers

LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of tokens after which routing is predicted, as far as the model reads so many."""

TYPICAL = 32
"""Number of tokens whose prediction stands for a whole text."""

INDISTINCT_COUNTS = 0.4
"""Overlap after `TYPICAL` tokens from which counts hardly distinguish two experts.

*Measured* on 14 experts and 91 pairs, beside the share of tokens that the other's evidence won on test text: two kinds
of old English prose 0.45 (0.64), Spanish and Portuguese 0.42 (0.29), two kinds of headers 0.30 (0.39), every other pair
0.26 at most (0.10 at most).
"""


OVERLAP_OF_TOKEN_COUNTS = (
    f"The share of two experts’ texts that the context router cannot tell apart by their token counts, after {TYPICAL} "
    "tokens, in this set of members."
)
"""What this overlap tells, for people; that of activations is another (`expert_overlap`)."""


def predict_text(plan: Plan, counts: Int64[Tensor, "V"]) -> Float[Tensor, "E"]:
    """Return the shares of other text that would go to each member, after `TYPICAL` tokens of equal weight.

    Members of another router are compared as if they were known by their tokens, as `context` knows them. `counts` is
    how often the text has each token (errors as `evidence_of`).
    """
    evidence = evidence_of(plan)
    shares = token_shares([counts])[: len(evidence)]
    moments = EvidenceMoments.of(shares, evidence[: len(shares)])
    return moments.confusion(torch.ones(TYPICAL, dtype=torch.float64))[0]


LEAST_OWN = 0.05
"""A member that gets a smaller share of its own tokens is drowned."""

LEAST_LOAD = 0.003
"""So is a member that gets a smaller share of all tokens, if every member's text has as many."""

LEAST_PART = 0.15
"""Least part in the solve of routers, as a share of an even part.

*Measured* on three experts of the demo: with a part of 0.39 a member gets 73 % of its tokens (88 % with an even one),
with 0.14 it gets 50 %, with 0.04 27 %.
"""

MOST_WORK = 2 * 10**9
"""E³ · V up to which routing is predicted: a few tenths of a second, where composing takes many."""


def plan_warnings(plan: Plan) -> tuple[PlanWarning, ...]:
    """Return the warnings of a plan; none where they would need more than stored counts, or much time."""
    if plan.from_base is not None or len(plan.members) < 2:
        return ()
    features = router_of(plan.recipe).statistics
    if features == OWN:
        return tuple(_of_parts(plan))
    if features != COUNTS or len(plan.members) ** 3 * plan.lead.architecture.vocab_size > MOST_WORK:
        return ()
    try:
        return (*_of_routing(plan), *_of_templates(plan))
    except RegError:  # composing refuses what cannot be predicted, and says why
        return ()


def _of_parts(plan: Plan) -> Iterator[PlanWarning]:
    """Yield members with few tokens, which the routers' least squares neglect."""
    parts = _parts([member.tokens for member in plan.members], statistics_weights(plan))
    for member, part in zip(plan.members, parts, strict=True):
        if part < LEAST_PART / len(parts):
            balanced = plan.recipe.balance != "none" or member.name in plan.recipe.weights
            yield PlanWarning(
                (member.version.ref,),
                part,
                f"{member.version.ref} is drowned: it brings {part:.1%} of the statistics that routers are solved from",
                f"give it more weight: --weights {member.name}=X" if balanced else "--balance tokens",
            )


def _of_routing(plan: Plan) -> Iterator[PlanWarning]:
    """Yield members whose tokens go to others, and pairs that counts of tokens cannot tell apart."""
    predicted = _by_context(plan, silent, only_typical=True)
    for number, (member, row) in enumerate(zip(predicted.members, predicted.confusion[0], strict=True)):
        if member.accuracy < LEAST_OWN or member.share < LEAST_LOAD:
            taker = predicted.refs[max(range(len(row)), key=lambda other: -1.0 if other == number else row[other])]
            yield PlanWarning(
                (member.ref,),
                member.accuracy,
                f"{member.ref} is drowned: {member.accuracy:.1%} of its own tokens are predicted to go to it, most to "
                f"{taker}",
                f"leave it out, or route by activations: --router {SOLVES_AGAIN}",
            )
    for pair in predicted.indistinct:
        share = predicted.overlap[pair]
        yield PlanWarning(
            pair,
            share,
            f"{pair[0]} and {pair[1]} overlap in token counts: {min(share, 1.0):.0%} of their texts look alike",
            f"leave one out; if reg preview --router {SOLVES_AGAIN} shows a small overlap of activations, use that "
            "router",
        )


_CONVERSATION = 2048
"""Tokens of a conversation, at most, as a rule: each has a token of its template."""


def _of_templates(plan: Plan) -> Iterator[PlanWarning]:
    """Yield members whose evidence counts the tokens of their chat template.

    They were registered before contents of messages were counted apart, or from text in which chats were rendered.
    """
    for member in plan.members:
        if member.is_of_contents or chat_template(member) is None:
            continue
        counts = member.evidence_counts
        marks = {token: int(counts[number]) for number, token in chat_marks(member).items() if number < len(counts)}
        if sum(marks.values()) * _CONVERSATION < int(counts.sum()):
            continue  # text of another kind has some of them too, such as file names in code
        most = max(marks, key=marks.__getitem__)
        yield PlanWarning(
            (member.version.ref,),
            sum(marks.values()) / int(counts.sum()),
            f"{member.version.ref} is known by its chat template too: {most} came {marks[most]:,} times in its text, "
            "so chats tend to go to the expert of the shortest ones",
            f"register it again from rows with messages: reg add-expert {member.name} CKPT --data FILE",
        )


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
    routers, layers = RouterSolver(plan, plan.members), compared_layers(plan.lead.architecture.num_hidden_layers)
    confusion, shared = [], dict[tuple[str, str], list[float]]()
    refs = [member.version.ref for member in plan.members]
    weights = routers.weights if method.statistics else plan.weights
    with progress("predicting", len(layers), "layer") as advance:
        for layer in layers:
            statistics = [member.statistics(MLP_INPUT, layer) for member in plan.members]
            confusion.append(_confusion(plan, routers, layer, statistics, weights))
            for pair, share in _overlaps(layer, refs, statistics):
                shared.setdefault(pair, []).append(share)
            advance(1)
    counts = [member.packed_statistics(MLP_INPUT, 0).count for member in plan.members]
    overlaps = {pair: fmean(shares) for pair, shares in shared.items()}
    members = _members(refs, counts, _parts(counts, weights), mean(tuple(confusion)), overlaps)
    notes = ["changes by passes of tokens (refine) are not predicted"] if retakes(plan.recipe) else []
    if len(layers) < (count := plan.lead.architecture.num_hidden_layers):
        notes.append(f"{len(layers)} of {count} layers were compared")
    means = BY_MOMENTS + (CORRECTED if method.statistics == OWN else "")
    return Preview(members, tuple(layers), tuple(confusion), overlaps, tuple(notes), (), means, INDISTINCT)


def _by_context(plan: Plan, progress: Progress, *, only_typical: bool = False) -> Preview:
    """Return the preview of context routing, from counts alone; `only_typical`: for texts of typical length alone."""
    longest = plan.lead.architecture.max_position_embeddings
    lengths = [length for length in LENGTHS if length <= longest] or [longest]
    typical = TYPICAL if TYPICAL in lengths else lengths[-1]
    lengths = [typical] if only_typical else lengths
    evidence = evidence_of(plan)  # (V, E)
    shares = shares_of(plan)[: len(evidence)]
    slow, _ = past_weights(plan, lengths[-1])  # the fast window notices a change of subject, and a text has none here
    moments = EvidenceMoments.of(shares, evidence[: len(shares)])
    by_tokens = []
    with progress("predicting", len(lengths), "length") as advance:
        for length in lengths:
            by_tokens.append(PreviewedLength(length, _matrix(moments.confusion(slow[:length]).tolist())))
            advance(1)
    read, refs = slow[:typical], [member.version.ref for member in plan.members]
    # One text of a that goes to b, or one of b that goes to a: counts cannot tell them apart.
    overlaps = {
        (refs[a], refs[b]): moments.mistaken(a, b, read) + moments.mistaken(b, a, read)
        for a, b in combinations(range(len(refs)), 2)
    }
    confusion = by_tokens[lengths.index(typical)].confusion
    tokens = [int(member.evidence_counts.sum()) for member in plan.members]
    members = _members(refs, tokens, [1 / len(refs)] * len(refs), confusion, overlaps, INDISTINCT_COUNTS)
    note = (
        f"predicted from counts of tokens, after {typical} tokens of a text; all layers route alike, and so layer 0 "
        "stands for all"
    )
    means = BY_COUNTS.format(tokens=typical)
    return Preview(members, (0,), (confusion,), overlaps, (note,), tuple(by_tokens), means, INDISTINCT_COUNTS)


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
        if isinstance(error, InvalidInputError):  # of the gate
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
