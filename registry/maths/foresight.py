"""Where a composed model will send each expert's tokens, predicted from statistics alone.

`confusion.predicted_confusion` answers for tokens whose features are those of the statistics: of each expert's own
forward pass, which bear the marks of its weights. On the trunk of a composition these marks are gone. They lie mostly
where tokens hardly vary (`overlap`), so that two corrections stand for their loss:

1. Only the r directions count in which tokens vary: eigenvectors of T, the mean covariance of all experts' tokens,
   each expert with the same share, whose eigenvalue is at least `SHARE` of their mean; a relative of Jolliffe's rule
   (1972, *Applied Statistics* 21, 160–173), which has 0.7 for a summary. In them, U of shape (H, r), the router is
   solved as the recipe says:

       W = (Uᵀ (Σ_e ω_e A_e + lam·I) U)⁻¹ Uᵀ [ω_1 s_1 … ω_E s_E]                     (r, E), DUME eq. 6

2. Logits spread `SPREAD` times as far about their means as in the experts' own passes.

The logits' mean and covariance then give P(logit j is the largest) as in `confusion`.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from registry.maths.confusion import chosen, sample
from registry.maths.router.solve import as_gate, solve
from registry.maths.statistics import Statistics
from registry.maths.threads import one_thread

SHARE = 0.1
"""Of the mean variance along all directions: what a direction needs to count."""

SPREAD = 1.2
"""How much wider logits spread on a composed trunk than in experts' own passes."""


def composed_confusion(
    statistics: Sequence[Statistics], weights: Sequence[float], lam: float, normalize: bool = True
) -> Float[Tensor, "E E"]:
    """Return, row by row, the share of expert e's tokens that a ridge router will send to each expert (top-1), float64.

    Rows sum to 1. A pure function of the statistics, up to rounding the same in any order of members. Costs one
    eigendecomposition, O(H³), and holds E + 3 matrices of H × H.

    Args:
        statistics: one a member, at one layer's `mlp_input`, over the same channels at whatever scales.
        weights: ω_e > 0, one a member.
        lam: ridge strength ≥ 0, absolute.
        normalize: router columns at unit length.

    Raises:
        ValueError: an expert has no tokens, weights and statistics differ in number, nothing varies, or the router
            cannot be solved.
    """
    if not statistics or len(statistics) != len(weights):
        raise ValueError(f"{len(weights)} weights do not go with the statistics of {len(statistics)} experts")
    if any(item.count < 1 for item in statistics):
        raise ValueError("an expert without tokens goes nowhere")
    with one_thread():
        grams = [item.gram.div_(item.count) for item in statistics]
        means = torch.stack([item.moment / item.count for item in statistics])
        overall = means.mean(dim=0)
        total = sum(grams[1:], start=grams[0].clone()).div_(len(grams)).sub_(torch.outer(overall, overall))
        values, vectors = torch.linalg.eigh(total)
        if not bool(values[-1] > 0):
            raise ValueError("the experts' tokens do not vary")
        basis = vectors[:, values >= SHARE * values.mean()]  # (H, r), r ≥ 1
        grams = [basis.T @ gram @ basis for gram in grams]
        means = means @ basis
        counts = [weight * item.count for weight, item in zip(weights, statistics, strict=True)]
        summed = sum(count * gram for count, gram in zip(counts, grams, strict=True))
        assert isinstance(summed, Tensor)
        moments = means * torch.tensor(counts, dtype=torch.float64)[:, None]
        gate = as_gate(solve(summed, moments.T.contiguous(), lam), normalize)
        points, everyone, rows = sample(len(gate)), range(len(gate)), []
        for mean, gram in zip(means, grams, strict=True):
            covariance = gate @ (gram - torch.outer(mean, mean)) @ gate.T
            rows.append(chosen(gate @ mean, covariance * SPREAD**2, points, everyone))
    return torch.stack(rows)
