"""Prefix means: what the text so far says of the experts, at each token.

    m_e(t) = Σ_{s ≤ t} w(t − s) ℓ_e(v_s) / Σ_{s ≤ t} w(t − s)

which is what a layer of attention with scores ln w(Δ) computes (w = 1: uniform attention is averaging). A second mean
f, over the last few tokens alone, notices that something else has begun: what exceeds a threshold θ counts `ALARM`
times. The expert of a token is

    argmax_e  m_e(t) + ALARM · (max(0, f_e(t) − θ_ee) − Σ_{n ≠ e} max(0, f_n(t) − f_e(t) − θ_en))

a function of the text alone, known before any layer runs. The first part is for the expert that the last tokens are
clearly of, the second against each that they are clearly not of; between those that are left, the slow mean decides.

Shapes: N texts of S tokens, V tokens, E experts.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from registry.maths.threads import one_thread

FAST = 4.0
"""τ of the fast window, in tokens."""

FAST_OF_TURNS = 8.0
"""The same of conversations, where some six tokens of a chat template part a question from its answer.

*Measured* by evidence alone (five skills and three domains of a chat model): after a question of another skill, and
its answer, an answer begins with its own expert in 90 % of five pairs of skills, with 4 in 60 %; where one text follows
another with no template between them, 17 and then 82 % of its first 8 and next 24 tokens have theirs, with 4 36 and
87 %.
"""

_AT_ONCE = 2**22
"""Numbers of an intermediate result that are in memory at once."""


def prefix_means(
    ids: Int[Tensor, "N S"],
    keep: Bool[Tensor, "N S"],
    evidence: Float[Tensor, "V E"],
    weights: Float[Tensor, "S"],
) -> Float[Tensor, "N S E"]:
    """Return m of each token, float64; `weights` is w(Δ) for Δ = 0 … S − 1.

    Tokens that do not count (padding) are no evidence; where none has counted so far, m is 0.
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
    slow: Float[Tensor, "*B E"], fast: Float[Tensor, "*B E"], thresholds: Float[Tensor, "E E"], alarm: float
) -> Float[Tensor, "*B E"]:
    """Return what routers compare, from m, f and θ; an excess over a threshold counts `alarm` times.

    Thresholds outside the diagonal are infinite where a host does not compare pairs of experts.
    """
    noticed = (fast - thresholds.diagonal()).clamp(min=0.0)
    for expert, limits in enumerate(thresholds):
        behind = (fast - fast[..., expert : expert + 1] - limits).clamp(min=0.0)  # (*B, E)
        behind[..., expert] = 0.0
        noticed[..., expert] -= behind.sum(dim=-1)
    return slow + alarm * noticed
