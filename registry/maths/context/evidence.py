"""Evidence of tokens: what one token says of the experts, from how often each expert's calibration used it.

With c_e(v) the occurrences of token v in expert e's calibration, p_e = c_e / n_e and p̄ the mean of the p_e,

    ℓ_e(v) = log(p_e(v) + β p̄(v) + γ / V),   minus its mean over the experts

A mean of ℓ_e over a text, plus a prior, is the log posterior of naive Bayes over unigrams, divided by the number of
tokens (Maron 1961, *Automatic Indexing*; Lewis 1998). β smooths: a token that expert e never saw counts log β against
it at most, since a part of every text is of no domain (Jelinek & Mercer 1980, interpolation). γ is a floor for tokens
that no expert saw, whose evidence is 0.

Counts are integers and additive, so evidence is a function of the set of members, whatever order they came in.
"""

from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

SMOOTHING = 0.03
"""β: the part of every text that is of no domain."""

FLOOR = 0.04
"""γ: the floor of a token's probability, times the size of the vocabulary."""


def token_evidence(counts: Sequence[Int64[Tensor, "_"]], neutral: Collection[int] = ()) -> Float[Tensor, "V E"]:
    """Return ℓ, float64, one row a token: its mean over the experts is 0.

    Args:
        counts: c_e, one vector a member; one that is shorter counts 0 for the tokens that it lacks.
        neutral: tokens whose evidence is 0, such as those that begin, end and pad a text.

    Raises:
        ValueError: there is no expert, a count is negative, or an expert counted no token.
    """
    if not counts:
        raise ValueError("evidence needs at least one expert")
    size = max(len(each) for each in counts)
    shares = torch.zeros((size, len(counts)), dtype=torch.float64)
    for number, each in enumerate(counts):
        total = int(each.sum())
        if total < 1 or int(each.min()) < 0:
            what = "a negative count" if int(each.min()) < 0 else "no token"
            raise ValueError(f"expert {number} counted {what}")
        shares[: len(each), number] = each.double() / total
    mean = shares.sum(dim=1, keepdim=True) / len(counts)
    evidence = torch.log(shares + SMOOTHING * mean + FLOOR / size)
    evidence -= evidence.sum(dim=1, keepdim=True) / len(counts)
    evidence[[token for token in neutral if 0 <= token < size]] = 0.0
    return evidence
