"""Solutions of symmetric positive definite systems, without copies of their factor.

`torch.cholesky_solve` copies the factor for each call, which takes longer than solving for a few right sides; two
triangular solutions give the same bits without it.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def cholesky_factor(upper: Float[Tensor, "H H"]) -> tuple[Float[Tensor, "H H"], int]:
    """Return L with L Lᵀ = A in the place of A, whose upper triangle alone is read, and 0 or the order that failed."""
    factor, info = upper.mT, torch.empty((), dtype=torch.int32, device=upper.device)
    torch.linalg.cholesky_ex(factor, out=(factor, info))
    return factor, int(info)


def cholesky_solved(factor: Float[Tensor, "H H"], right: Float[Tensor, "H E"]) -> Float[Tensor, "H E"]:
    """Return A⁻¹ B, from the factor of A and B; A⁻¹ B is stored by columns, and so should B be."""
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    solved: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return solved
