"""The router of whole sequences: ridge regression from mean embeddings to members, in closed form.

The input of MergeME's sequence-level router (Zhou et al. 2025, §3.2) is the mean m_w of the shared embeddings of the
first tokens of a text; here each window w of kept calibration tokens is a text. One-hot targets of the window's expert
give the closed form of the routers of a mixture (DUME eq. 6 and 7): with n_i windows of member i,

    A_i = 1/n_i Σ_w m_w m_wᵀ        s_i = 1/n_i Σ_w m_w        W = (Σ_i A_i + r I)⁻¹ [s_1 … s_E]        scores = Wᵀ m

and r = λ times the mean of the diagonal of Σ_i A_i. Each member counts alike, however much text it kept.

Shapes: n windows, d hidden size of the shared embedding, E members.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from registry.maths.router.solve import solve
from registry.maths.threads import one_thread


class SequenceSums:
    """Sums over members, float64, added in the order of their names.

    Args:
        size: d.
    """

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
        """Return Wᵀ, as the weight of a linear map; the sums are used up.

        Args:
            lam: λ ≥ 0.

        Raises:
            ValueError: the regularised sum is not positive definite.
        """
        strength = lam * float(self._gram.diagonal().mean())
        router: Tensor = solve(self._gram, torch.stack(self._moments, dim=1), strength).T.contiguous()
        return router
