"""Prediction of context routing from counts of tokens: no weight is read, no model runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from registry.composition.plan import Plan
from registry.maths.context.evidence import EvidenceMoments, token_shares
from registry.methods.moe.context.member_evidence import evidence_of, past_weights
from registry.progress import Progress

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


@dataclass(frozen=True)
class PredictedRouting:
    """Shares of the members' texts that context routing sends to each member.

    Attributes:
        confusion: number of tokens read → row by row, the shares of a member's texts that go to each member.
        overlap: pair of members, by number → share of their texts that counts cannot tell apart after `typical`
            tokens: that one of a goes to b and that one of b goes to a have probabilities that add up to it.
        typical: `TYPICAL`, or the longest text of the model if that is shorter.
        tokens: tokens that each member counted.
    """

    confusion: Mapping[int, Float[Tensor, "E E"]]
    overlap: Mapping[tuple[int, int], float]
    typical: int
    tokens: tuple[int, ...]


def predict_routing(plan: Plan, progress: Progress, *, only_typical: bool = False) -> PredictedRouting:
    """Predict the routing of a plan whose router is `context`.

    Args:
        plan: the composition.
        progress: receives the progress.
        only_typical: predict it for texts of the typical length alone.

    Raises:
        DamagedError: stored counts are damaged.
        InvalidInputError: a member counted no token.
    """
    longest = plan.lead.architecture.max_position_embeddings
    lengths = [length for length in LENGTHS if length <= longest] or [longest]
    typical = TYPICAL if TYPICAL in lengths else lengths[-1]
    lengths = [typical] if only_typical else lengths
    evidence = evidence_of(plan)  # (V, E)
    shares = token_shares([member.evidence_counts for member in plan.members])[: len(evidence)]
    slow, _ = past_weights(plan, lengths[-1])  # the fast window notices a change of subject, and a text has none here
    moments = EvidenceMoments.of(shares, evidence[: len(shares)])
    confusion = {}
    with progress("predicting", len(lengths), "length") as advance:
        for length in lengths:
            confusion[length] = moments.confusion(slow[:length])
            advance(1)
    read = slow[:typical]
    overlap = {
        (a, b): moments.mistaken(a, b, read) + moments.mistaken(b, a, read)
        for a, b in combinations(range(len(plan.members)), 2)
    }
    return PredictedRouting(
        confusion, overlap, typical, tuple(int(member.evidence_counts.sum()) for member in plan.members)
    )


def predict_text(plan: Plan, counts: Int64[Tensor, "V"]) -> Float[Tensor, "E"]:
    """Return the shares of other text that would go to each member, after `TYPICAL` tokens of equal weight.

    Members of another router are compared as if they were known by their tokens, as `context` knows them.

    Args:
        plan: a composition.
        counts: how often the text has each token.

    Raises:
        DamagedError: stored counts are damaged.
        InvalidInputError: a member counted no token.
    """
    evidence = evidence_of(plan)
    shares = token_shares([counts])[: len(evidence)]
    moments = EvidenceMoments.of(shares, evidence[: len(shares)])
    return moments.confusion(torch.ones(TYPICAL, dtype=torch.float64))[0]
