"""Evidence of tokens: what one token says of the experts, from how often each expert's calibration used it.

With c_e(v) the occurrences of token v in expert e's calibration, p_e = c_e / n_e and p̄ the mean of the p_e,

    ℓ_e(v) = log(p_e(v) + β p̄(v) + γ / V),   minus its mean over the experts

A mean of ℓ_e over a text, plus a prior, is the log posterior of naive Bayes over unigrams, divided by the number of
tokens (Maron 1961, *Automatic Indexing*; Lewis 1998). β smooths: a token that expert e never saw counts log β against
it at most, since a part of every text is of no domain (Jelinek & Mercer 1980, interpolation). γ is a floor for tokens
that no expert saw, whose evidence is 0.

Counts are integers and additive, so evidence is a function of the set of members, whatever order they came in.
"""

import math
from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from registry.maths.context.evidence_moments import EvidenceMoments

SMOOTHING = 0.03
"""β: the part of every text that is of no domain."""

CHANCE = 4.5
"""z: standard deviations above the mean that count as no chance. Real text comes in bursts: 3 are too few."""

SHARE = 0.5
"""How far ahead another expert must be, as a part of the expert's mean evidence over its own text."""

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
    shares = token_shares(counts)
    mean = shares.sum(dim=1, keepdim=True) / len(counts)
    evidence = torch.log(shares + SMOOTHING * mean + FLOOR / len(shares))
    evidence -= evidence.sum(dim=1, keepdim=True) / len(counts)
    evidence[[token for token in neutral if 0 <= token < len(shares)]] = 0.0
    return evidence


def token_shares(counts: Sequence[Int64[Tensor, "_"]]) -> Float[Tensor, "V E"]:
    """Return p, float64: columns sum to 1 (arguments and errors as `token_evidence`)."""
    if not counts:
        raise ValueError("evidence needs at least one expert")
    shares = torch.zeros((max(len(each) for each in counts), len(counts)), dtype=torch.float64)
    for number, each in enumerate(counts):
        total = int(each.sum())
        if total < 1 or int(each.min()) < 0:
            raise ValueError(f"expert {number} counted {'a negative count' if int(each.min()) < 0 else 'no token'}")
        shares[: len(each), number] = each.double() / total
    return shares


def thresholds(shares: Float[Tensor, "V E"], evidence: Float[Tensor, "V E"], tau: float) -> Float[Tensor, "E E"]:
    """Return θ, float64: fast means of evidence that are no chance.

    Over independent tokens of expert j the mean of a window exp(−Δ/τ) of any evidence x has the mean Σ_v p_j(v) x(v)
    and the variance Var_j(x) / n, where n = (1 + ε) / (1 − ε), ε = exp(−1/τ), is how many tokens the window is worth;
    z = `CHANCE` standard deviations above its mean is its *reach*, the level of a chart of exponentially weighted means
    (Roberts 1959, *Technometrics* 1, 239–250). With μ_ee the mean of ℓ_e over its own text,

        θ_ee = max over j ≠ e of the reach of ℓ_e in text of j
        θ_en = max(the reach of ℓ_n − ℓ_e in text of e, `SHARE` · μ_ee)         n ≠ e

    A mean f_e above θ_ee is clearly from text of e. If f_n − f_e is above θ_en, the text is clearly not e's, even where
    n has a double and neither of the two reaches its own threshold. The second bound of θ_en is for experts far from
    all others: where their text has a passage of another kind, every other expert has more evidence of it.

    Args:
        shares: p.
        evidence: ℓ.
        tau: τ of the fast window.
    """
    decay = math.exp(-1 / tau)
    worth = (1 + decay) / (1 - decay)
    moments = EvidenceMoments.of(shares, evidence)
    means = moments.means  # of text of e: (E, E), for n
    own = means.diagonal()[:, None]
    spreads = moments.covariances.diagonal(dim1=1, dim2=2)  # of text of e: (E, E), of n
    with_own = torch.stack([covariance[e] for e, covariance in enumerate(moments.covariances)])  # Cov_e(ℓ_e, ℓ_n)
    ahead = means - own + _chance(spreads + spreads.diagonal()[:, None] - 2 * with_own, worth)
    alone = means + _chance(spreads, worth)
    if len(means) > 1:
        alone = alone.fill_diagonal_(-torch.inf)
    return ahead.maximum(SHARE * own).diagonal_scatter(alone.amax(dim=0))


def _chance(variance: Float[Tensor, "E E"], worth: float) -> Float[Tensor, "E E"]:
    """Return how far a window's mean is above its own mean by chance."""
    return CHANCE * (variance.clamp(min=0.0) / worth).sqrt()
