"""The closed-form router: ridge regression from summed statistics, unit-norm columns (DUME eq. 6 and 7)."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from registry.maths.statistics import Statistics


def ridge(statistics: Iterable[Statistics], weights: Sequence[float], lam: float) -> Float[Tensor, "E H"]:
    """Return gate.weight of one layer, float64: row e is expert e's column of W, at unit length.

        W = (Σ_e ω_e A_e + lam·I)⁻¹ [ω_1 s_1 … ω_E s_E]            (H, E), DUME eq. 6–7
        gate.weight = (W / column norms)ᵀ                           (E, H)

    Solved by Cholesky in float64, on one thread, so that the result does not depend on how many there are. Grams are
    summed in the order given; callers give name order. No intercept: no host stores a router bias.

    Args:
        statistics: one a member, at the layer's `mlp_input`; scales may differ. Taken one at a time, so that only one
            need be in memory.
        weights: ω_e > 0, one a member.
        lam: ridge strength ≥ 0, absolute (not relative to the Gram).

    Raises:
        ValueError: the regularised Gram is not positive definite, or a column is zero.
    """
    gram, moments = None, []
    for item, weight in zip(statistics, weights, strict=True):
        gram = item.gram.mul_(weight) if gram is None else gram.add_(item.gram, alpha=weight)
        moments.append(item.moment * weight)
    if gram is None:
        raise ValueError("a router needs at least one expert")
    gram.diagonal().add_(lam)
    with _one_thread():
        factor, info = torch.linalg.cholesky_ex(gram)
        if int(info) != 0:
            raise ValueError(
                f"the summed Gram plus {lam:g}·I is not positive definite (order {int(info)} of {len(gram)})"
            )
        columns = torch.cholesky_solve(torch.stack(moments, dim=1), factor)
        norms = columns.norm(dim=0)
    if not bool((norms > 0).all()) or not bool(torch.isfinite(columns).all()):
        raise ValueError("a router column is zero or not finite")
    gate: Tensor = (columns / norms).T.contiguous()
    return gate


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
