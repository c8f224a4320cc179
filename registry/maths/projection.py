"""Members of different sizes between one embedding and one head: projectors and the router of a sequence.

MergeME (Zhou et al. 2025, §3.2) joins experts of different architectures by projectors in front of each body and behind
it. Theirs are MLPs, trained; these are matrices, by least squares, in closed form. With E, H the shared embedding and
head, (V, d), and E_i, H_i those of member i, (V, d_i):

- Into the member, P (d, d_i): argmin Σ_v c_v ‖E_v P − E_{i,v}‖² + r ‖P‖², so P = (Eᵀ C E + r I)⁻¹ Eᵀ C E_i with
  C = diag(c), c_v how often the member's calibration used token v, and r = λ times the mean of the diagonal of Eᵀ C E.
- Out of it, R (d, d_i): argmin ‖K^{1/2} (H R − s H_i) G^{1/2}‖_F with K = diag(c + δ c̄), c̄ the mean count, G the Gram
  of the member's own last hidden states and s the ratio of what the two multiply their logits by. A minimiser satisfies
  Hᵀ K H R G = s Hᵀ K H_i G, so wherever H has full column rank R = s (Hᵀ K H)⁻¹ Hᵀ K H_i minimises it, for every G: no
  statistics of hidden states are needed. Tokens that the member never used count a little, as its softmax goes over
  them too.

The input of its sequence-level router is the mean m_w of the shared embeddings of a text, here of its first tokens.
Each window w of kept calibration tokens is a text. One-hot targets of the window's expert give the closed form of the
routers of a mixture (DUME eq. 6 and 7): with n_i windows of member i,

    A_i = 1/n_i Σ_w m_w m_wᵀ        s_i = 1/n_i Σ_w m_w        W = (Σ_i A_i + r I)⁻¹ [s_1 … s_E]        scores = Wᵀ m

and r = λ times the mean of the diagonal of Σ_i A_i. Each member counts alike, however much text it kept.

Sums are added block by block, in float64 and on one thread, so that bits do not depend on how many there are.

Shapes: V vocabulary, r rows of a block, n windows, d shared hidden size, D a member's, E members.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from registry.maths.cholesky import cholesky_factor, cholesky_solved
from registry.maths.router.gates import solve
from registry.maths.threads import one_thread

RANK_TOLERANCE = 1e-6
"""A head has full rank if its smallest singular value is more than this share of its largest one; its Gram is then
positive definite far beyond the rounding of float64."""

ROWS = 1024
"""Rows of tables that are summed at once."""

UNUSED = 0.1
"""δ: what a token that was never used counts in the map to the head, in mean counts.

*Measured* on a Llama of half the lead's width that was trained for 111 steps from random weights, of perplexity 255:
through this map 300 to 312 with δ from 0.01 to 1.2, and 442 with all tokens alike.
"""


def table_map(
    blocks: Iterable[tuple[Float[Tensor, "r d"], Float[Tensor, "r D"], Float[Tensor, "r"]]],
    sizes: tuple[int, int],
    lam: float = 0.0,
) -> Float[Tensor, "d D"]:
    """Return (Aᵀ C A + r I)⁻¹ Aᵀ C B of a shared table A and a member's own B, float64; `sizes` are d and D.

    Blocks are rows of A and of B, with c of their tokens, in float64. r is λ ≥ 0 times the mean of the diagonal of
    Aᵀ C A (ValueError: the regularised sum is not positive definite).
    """
    gram = torch.zeros((sizes[0], sizes[0]), dtype=torch.float64)
    cross = torch.zeros(sizes, dtype=torch.float64)
    for shared, own, counts in blocks:
        with one_thread():
            weighted = shared * counts[:, None]
            gram.addmm_(weighted.T, shared)
            cross.addmm_(weighted.T, own)
    with one_thread():
        gram.diagonal().add_(lam * float(gram.diagonal().mean()))
        factor, order = cholesky_factor(gram)
        if order:
            raise ValueError(f"the tables' Gram plus {lam:g} of its mean is singular (order {order} of {len(gram)})")
        solved: Tensor = cholesky_solved(factor, cross).contiguous()
        return solved


def head_rank(head: Float[Tensor, "V d"]) -> int:
    """Return how many singular values of a head are more than `RANK_TOLERANCE` of the largest one."""
    gram = torch.zeros((head.shape[1], head.shape[1]), dtype=torch.float64)
    with one_thread():
        for rows in head.split(ROWS):
            gram.addmm_(rows.double().T, rows.double())
        squared = torch.linalg.eigvalsh(gram)
    return int((squared > RANK_TOLERANCE**2 * squared[-1].clamp(min=0)).sum())


def sequence_router(members: Iterable[Iterable[Float[Tensor, "_ d"]]], size: int, lam: float) -> Float[Tensor, "E d"]:
    """Return Wᵀ for λ ≥ 0, as the weight of a linear map, float64; `size` is d.

    Members, in the order of their names, have m of one window or more, block by block in float64 (ValueError: the
    regularised sum is not positive definite).
    """
    total, moments = torch.zeros((size, size), dtype=torch.float64), []
    for blocks in members:
        gram, moment, count = torch.zeros_like(total), torch.zeros(size, dtype=torch.float64), 0
        for means in blocks:
            with one_thread():
                gram.addmm_(means.T, means)
                moment += means.sum(dim=0)
            count += len(means)
        total += gram / count
        moments.append(moment / count)
    strength = lam * float(total.diagonal().mean())
    router: Tensor = solve(total, torch.stack(moments, dim=1), strength).T.contiguous()
    return router
