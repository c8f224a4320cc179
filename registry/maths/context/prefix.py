"""Prefix means: what the text so far says of the experts, at each token.

    m_e(t) = Σ_{s ≤ t} w(t − s) ℓ_e(v_s) / Σ_{s ≤ t} w(t − s)

which is what a layer of attention with scores ln w(Δ) computes (w = 1: uniform attention is averaging). A second mean
f, over the last few tokens alone, tells that something else has begun: what exceeds its threshold θ_e counts `ALARM`
times. The expert of a token is

    argmax_e  m_e(t) + ALARM · max(0, f_e(t) − θ_e)

a function of the text alone, known before any layer runs.

Shapes: N texts of S tokens, V tokens, E experts.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from registry.maths.threads import one_thread

FAST = 6.0
"""τ of the fast window, in tokens."""

_AT_ONCE = 2**22
"""Numbers of an intermediate result that are in memory at once."""


def prefix_means(
    ids: Int[Tensor, "N S"],
    keep: Bool[Tensor, "N S"],
    evidence: Float[Tensor, "V E"],
    weights: Float[Tensor, "S"],
) -> Float[Tensor, "N S E"]:
    """Return m of each token, float64; tokens that do not count (padding) are no evidence.

    Args:
        ids: the texts.
        keep: which tokens count; of a text without any so far m is 0.
        evidence: ℓ.
        weights: w(Δ) for Δ = 0 … S − 1.
    """
    # A causal convolution: the kernel runs backwards over the texts, which are padded in front.
    count, length = ids.shape
    kernel = weights.double().flip(0)[None, None]  # (1, 1, S)
    rows = max(1, _AT_ONCE // (length * (evidence.shape[1] + 1)))
    means = []
    with one_thread():
        for first in range(0, count, rows):
            here = keep[first : first + rows]
            values = evidence.double()[ids[first : first + rows].long()] * here[..., None]  # (n, S, E)
            signal = torch.cat([values, here[..., None].double()], dim=-1).movedim(-1, 1)  # (n, E + 1, S)
            flat = F.pad(signal.reshape(-1, 1, length), (length - 1, 0))
            sums = F.conv1d(flat, kernel).view(len(here), -1, length).movedim(1, -1)  # (n, S, E + 1)
            means.append(sums[..., :-1] / sums[..., -1:].clamp(min=torch.finfo(torch.float64).tiny))
    return torch.cat(means)


def context_scores(
    slow: Float[Tensor, "*B E"], fast: Float[Tensor, "*B E"], thresholds: Float[Tensor, "E"], alarm: float
) -> Float[Tensor, "*B E"]:
    """Return what routers compare: m + `alarm` · max(0, f − θ)."""
    return slow + alarm * (fast - thresholds).clamp(min=0.0)
