"""The linear solve that routers share: Cholesky in float64 on one thread, and rows of unit length."""

import torch
from jaxtyping import Float
from torch import Tensor

from registry.maths.threads import one_thread


def solve(gram: Float[Tensor, "H H"], moments: Float[Tensor, "H E"], lam: float) -> Float[Tensor, "H E"]:
    """Return (gram + lam·I)⁻¹ moments, float64, the same whatever the number of threads.

    Adds to `gram`, of which it reads the upper triangle alone.

    Raises:
        ValueError: the regularised Gram is not positive definite.
    """
    gram.diagonal().add_(lam)
    with one_thread():
        factor, info = torch.linalg.cholesky_ex(gram.mT)  # its lower triangle, column by column, as LAPACK wants it
        if int(info) != 0:
            raise ValueError(
                f"the summed Gram plus {lam:g}·I is not positive definite (order {int(info)} of {len(gram)})"
            )
        columns: Tensor = torch.cholesky_solve(moments, factor)
    return columns


def as_gate(columns: Float[Tensor, "H E"], normalize: bool) -> Float[Tensor, "E H"]:
    """Return the columns as rows, each at unit length if `normalize`.

    Raises:
        ValueError: a column is zero or not finite.
    """
    with one_thread():
        norms = columns.norm(dim=0)
    if not bool((norms > 0).all()) or not bool(torch.isfinite(columns).all()):
        raise ValueError("a router column is zero or not finite")
    gate: Tensor = (columns / norms if normalize else columns).T.contiguous()
    return gate
