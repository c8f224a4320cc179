"""Members of different sizes between one embedding and one head: projectors and the router of a sequence.

MergeME (Zhou et al. 2025, §3.2) joins experts of different architectures by linear projectors in front of each body and
behind it. Theirs are trained; these are least squares, in closed form. With E, H the shared embedding and head, (V, d),
and E_i, H_i those of member i, (V, d_i):

- Into the member, P (d, d_i): argmin Σ_v c_v ‖E_v P − E_{i,v}‖² + r ‖P‖², so P = (Eᵀ C E + r I)⁻¹ Eᵀ C E_i with
  C = diag(c), c_v how often the member's calibration used token v, and r = λ times the mean of the diagonal of Eᵀ C E.
- Out of it, R (d, d_i): argmin ‖K^{1/2} (H R − s H_i) G^{1/2}‖_F with K = diag(c + δ c̄), c̄ the mean count, G the Gram
  of the member's own last hidden states and s the ratio of what the two multiply their logits by. A minimiser satisfies
  Hᵀ K H R G = s Hᵀ K H_i G, so wherever H has full column rank R = s (Hᵀ K H)⁻¹ Hᵀ K H_i minimises it, for every G: no
  statistics of hidden states are needed. Tokens that the member never used count a little, as its softmax goes over
  them too.

The input of its sequence-level router is the mean m_w of the shared embeddings of the first tokens of a text; here each
window w of kept calibration tokens is a text. One-hot targets of the window's expert give the closed form of the
routers of a mixture (DUME eq. 6 and 7): with n_i windows of member i,

    A_i = 1/n_i Σ_w m_w m_wᵀ        s_i = 1/n_i Σ_w m_w        W = (Σ_i A_i + r I)⁻¹ [s_1 … s_E]        scores = Wᵀ m

and r = λ times the mean of the diagonal of Σ_i A_i. Each member counts alike, however much text it kept.

Sums are added block by block, in float64 and on one thread, so that bits do not depend on how many there are.

Shapes: V vocabulary, r rows of a block, n windows, d shared hidden size, D a member's, E members.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from registry.maths.cholesky import cholesky_factor, cholesky_solved
from registry.maths.router.gates import solve
from registry.maths.threads import one_thread

RANK_TOLERANCE = 1e-6
"""A head has full rank if its smallest singular value is more than this share of its largest one; its Gram is then
positive definite far beyond the rounding of float64."""

UNUSED = 0.1
"""δ: what a token that was never used counts in the map to the head, in mean counts.

*Measured* on a Llama of half the lead's width that was trained for 111 steps from random weights, of perplexity 255:
through this map 300 to 312 with δ from 0.01 to 1.2, and 442 with all tokens alike.
"""


class TableSums:
    """Sums over the vocabulary, float64: Aᵀ C A and Aᵀ C B of a shared table A (V, d) and a member's own B (V, D)."""

    def __init__(self, shared: int, own: int) -> None:
        self._gram = torch.zeros((shared, shared), dtype=torch.float64)
        self._cross = torch.zeros((shared, own), dtype=torch.float64)

    def add(self, shared: Float[Tensor, "r d"], own: Float[Tensor, "r D"], counts: Float[Tensor, "r"]) -> None:
        """Add rows of A and of B, each with c of its token; all in float64."""
        with one_thread():
            weighted = shared * counts[:, None]
            self._gram.addmm_(weighted.T, shared)
            self._cross.addmm_(weighted.T, own)

    def solve(self, lam: float = 0.0) -> Float[Tensor, "d D"]:
        """Return (Aᵀ C A + r I)⁻¹ Aᵀ C B, where r is λ ≥ 0 times the mean of the diagonal; the sums are used up.

        Raises:
            ValueError: the regularised sum is not positive definite.
        """
        with one_thread():
            self._gram.diagonal().add_(lam * float(self._gram.diagonal().mean()))
            factor, order = cholesky_factor(self._gram)
            if order:
                size = len(self._gram)
                raise ValueError(f"the tables' Gram plus {lam:g} of its mean is singular (order {order} of {size})")
            solved: Tensor = cholesky_solved(factor, self._cross).contiguous()
            return solved


class HeadGram:
    """Hᵀ H, (d, d) in float64."""

    def __init__(self, size: int) -> None:
        self._gram = torch.zeros((size, size), dtype=torch.float64)

    def add(self, rows: Float[Tensor, "r d"]) -> None:
        """Add rows of H, in float64."""
        with one_thread():
            self._gram.addmm_(rows.T, rows)

    def rank(self) -> int:
        """Return how many singular values of H are more than `RANK_TOLERANCE` of the largest one."""
        with one_thread():
            squared = torch.linalg.eigvalsh(self._gram)
        return int((squared > RANK_TOLERANCE**2 * squared[-1].clamp(min=0)).sum())


class SequenceSums:
    """Sums over members, (d, d) and (d,) in float64, added in the order of their names."""

    def __init__(self, size: int) -> None:
        self._gram = torch.zeros((size, size), dtype=torch.float64)
        self._moments: list[Tensor] = []
        self._own = torch.zeros((size, size), dtype=torch.float64)
        self._moment, self._count = torch.zeros(size, dtype=torch.float64), 0

    def add(self, means: Float[Tensor, "n d"]) -> None:
        """Add windows of the present member, in float64."""
        with one_thread():
            self._own.addmm_(means.T, means)
            self._moment += means.sum(dim=0)
            self._count += len(means)

    def close_member(self) -> None:
        """End the present member, of which there is a window, and begin with the next one."""
        self._gram += self._own / self._count
        self._moments.append(self._moment / self._count)
        self._own.zero_()
        self._moment, self._count = torch.zeros_like(self._moment), 0

    def solve(self, lam: float) -> Float[Tensor, "E d"]:
        """Return Wᵀ for λ ≥ 0, as the weight of a linear map; the sums are used up.

        Raises:
            ValueError: the regularised sum is not positive definite.
        """
        strength = lam * float(self._gram.diagonal().mean())
        router: Tensor = solve(self._gram, torch.stack(self._moments, dim=1), strength).T.contiguous()
        return router
