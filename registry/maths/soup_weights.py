"""Soup-of-Experts: shared weights and a bank of experts that domain weights combine (Ablin et al. 2025).

A small MLP φ maps domain weights h to one coefficient an expert, and these give one dense model:

    α = φ(h) = W_2 max(0, W_1 h + b_1) + b_2                        (§2.3; max: ours)
    Θ = S + Σ_j α_j E_j                                                            (eq. 2)

In training, h is random (§2.4): its support is some domains drawn without replacement, whose parts are uniform in
[0, 1] and divided by their sum. The windows of a step come from the mixture of the domains with the weights h
(algorithm 1).

Shapes: k domains, n experts, F hidden units of φ, T steps, B windows of a step.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor


def draw_domain_weights(domains: int, support: int, steps: int, draw: torch.Generator) -> Float64[Tensor, "T k"]:
    """Return random domain weights of each step: `support` domains, and h_i = u_i / Σ u, u uniform in [0, 1] (§2.4)."""
    chosen = torch.rand((steps, domains), dtype=torch.float64, generator=draw).argsort(dim=1)[:, :support]
    parts = 1 - torch.rand((steps, support), dtype=torch.float64, generator=draw)  # in (0, 1]: their sum is not 0
    weights = torch.zeros((steps, domains), dtype=torch.float64)
    return weights.scatter_(1, chosen, parts / parts.sum(dim=1, keepdim=True))


def draw_domains(weights: Float64[Tensor, "T k"], windows: int, draw: torch.Generator) -> Int64[Tensor, "T B"]:
    """Return the domain of each window of each step, drawn from the step's weights; `windows` is B."""
    return torch.multinomial(weights, windows, replacement=True, generator=draw)


def combined(
    shared: Float[Tensor, "*shape"], experts: Float[Tensor, "n *shape"], alpha: Float[Tensor, "n"]
) -> Float[Tensor, "*shape"]:
    """Return Θ = S + Σ_j α_j E_j of one tensor (eq. 2)."""
    total: Tensor = torch.tensordot(alpha, experts, dims=1) + shared
    return total


def combined_low_rank(
    shared: Float[Tensor, "a b"], left: Float[Tensor, "n a r"], right: Float[Tensor, "n r b"], alpha: Float[Tensor, "n"]
) -> Float[Tensor, "a b"]:
    """Return Θ = S + Σ_j α_j U_j V_j of one matrix: eq. 2 with E_j = U_j V_j of rank r (§2.6)."""
    count, rows, rank = left.shape
    scaled = (alpha[:, None, None] * left).transpose(0, 1).reshape(rows, count * rank)  # (a, n r)
    return shared + scaled @ right.reshape(count * rank, -1)


def coefficients(
    weights: Sequence[float],
    hidden: tuple[Float[Tensor, "F k"], Float[Tensor, "F"]],
    output: tuple[Float[Tensor, "n F"], Float[Tensor, "n"]],
) -> list[float]:
    """Return α = φ(h) (§2.3), the same bits on every machine: each sum is rounded once.

    h is `weights` divided by their sum; `hidden` is W_1 and b_1, `output` W_2 and b_2.
    """
    whole = math.fsum(weights)
    middle = _affine([weight / whole for weight in weights], *hidden)
    return _affine([max(0.0, value) for value in middle], *output)


def _affine(x: Sequence[float], matrix: Tensor, bias: Tensor) -> list[float]:
    rows, offsets = matrix.double().tolist(), bias.double().tolist()
    return [
        math.fsum([offset, *(a * b for a, b in zip(row, x, strict=True))])
        for row, offset in zip(rows, offsets, strict=True)
    ]


def nearest_shares(
    embeddings: Iterable[Float64[Tensor, "H"]], centroids: Float64[Tensor, "k H"]
) -> Float64[Tensor, "k"]:
    """Return the share of embedded documents that are nearest to each centroid (algorithm 3); zeros for none."""
    nearest = [int((centroids - embedding).square().sum(dim=1).argmin()) for embedding in embeddings]
    counts = torch.bincount(torch.tensor(nearest, dtype=torch.int64), minlength=len(centroids))
    return counts.double() / max(1, len(nearest))
