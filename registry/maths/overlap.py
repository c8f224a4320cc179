"""Overlap of two experts' tokens for a linear router, from their statistics alone.

With n, s and A an expert's count, moment and Gram at one layer (`Statistics`), and N = n_a + n_b:

    μ_e = s_e / n_e      C_e = A_e − s_e s_eᵀ / n_e      δ = μ_a − μ_b           (H,), (H, H), (H,)
    Σ = (C_a + C_b) / (N − 2)                            within the experts, pooled
    T = C_a / 2n_a + C_b / 2n_b + δ δᵀ / 4               of all tokens of both, half of them each expert's

The Mahalanobis distance D² = δᵀ Σ⁻¹ δ tells how well the best linear rule can do: for two Gaussians of covariance Σ it
errs on Φ(−D/2) of either's tokens (Fisher 1936; McLachlan 1992, *Discriminant Analysis and Statistical Pattern
Recognition*), and their densities share 2Φ(−D/2) of their mass, the overlapping coefficient (Inman & Bradley 1989,
*Communications in Statistics* 18, 3851–3874).

Over all H channels D sees the experts' weights too: each took its statistics in its own forward pass, and a small
shift along directions in which tokens hardly vary is a large D. *Measured* (Llama, H = 256, six fine-tuned experts):
an expert and its base lie 1.9 to 5.6 apart on the very same text, and so do two experts (2.7 to 5.2) whose tokens the
routers of compositions sent to the wrong one nearly as often as by chance. `overlap` therefore looks only along the r
leading principal directions of T, those in which the tokens of both together vary most (principal components, then
Fisher's rule: Belhumeur, Hespanha & Kriegman 1997, *IEEE TPAMI* 19, 711–720). Another text shows there, fine-tuning
hardly does.

*Summaries.* The covariance of one expert's tokens, C, is taken as that of probabilistic principal components (Tipping &
Bishop 1999, *Journal of the Royal Statistical Society B* 61, 611–622, eq. 7 and 8):

    C ≈ U Λ Uᵀ + ρ (I − U Uᵀ)        U (H, K) its leading directions, Λ (K,) what it is along them,
                                     ρ = (tr C − tr Λ) / (H − K) its mean over all others

In that form all that `overlap` looks for lies in the span of both experts' U and of the difference of their means:
2K + 1 directions instead of H. Comparing two summaries costs O(H K²) and reads H K numbers, where two Grams cost
O(H² r) and have to be read, H² numbers each.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from registry.maths.statistics import Statistics

RIDGE = 1e-9
"""Added to the diagonal of Σ, times its mean: what does not vary gets a variance, and Σ a Cholesky decomposition."""

TOKENS_PER_DIRECTION = 4
"""Tokens that each expert needs for every direction looked along; with fewer, fewer directions are taken."""

SMALL = 512
"""Up to this H a full eigendecomposition is quick enough."""

STEPS = 8
"""Products with the matrix in `leading_directions`."""

LEAST_COLUMNS = 16
"""Columns of the block in `leading_directions`, or the rank where that is more."""

DIRECTIONS = 48
"""K. *Measured* on the MLP inputs of six fine-tuned experts (Llama, H = 256, three layers, all pairs): `routing` is off
by 0.009 at most and 0.002 on average, against 0.015 and 0.004 with 32 directions, 0.004 and 0.001 with 64; between two
experts, mean over layers, it lies from 0.03 to 0.81. `subspace` is the same."""

DEPENDENT = 1e-8
"""A direction of squared length below this, within the span of others, is taken to be one of these."""

ROUNDING = 1e-9
"""Of the sum of squares of all activations: what rounding may make of a variance that is 0."""


@dataclass(frozen=True)
class Overlap:
    """Distance and overlap of two experts' tokens at one layer.

    Attributes:
        distance: ≥ 0, in standard deviations: the Mahalanobis distance of the means along the leading directions of
            both experts' tokens, corrected for its bias; infinite where the experts differ and nothing varies.
        routing: 2Φ(−distance/2), from 0 to 1: the share of tokens that no linear router tells apart; by chance, 1.
        subspace: ‖U_aᵀ U_b‖²_F / r, from 0 to 1: the mean squared cosine of the angles between the r leading principal
            directions of the one and of the other (Krzanowski 1979, *JASA* 74, 703–707). By chance r/H.
    """

    distance: float
    routing: float
    subspace: float


def overlap(a: Statistics, b: Statistics, rank: int = 16) -> Overlap:
    """Return the distance and overlap of two experts' tokens at one layer.

    *Measured* on composed models, `routing` averaged over layers against the errors that their routers made on test
    text, with the mean and the base trunk: two alike domains 0.82 (errors 0.86 and 0.94), the nearest others 0.29, 0.27
    and 0.27 (0.15 and 0.26, 0.29 and 0.36, 0.15 and 0.16), code or German to any other at most 0.09 (0.06). On one
    text, between an expert and its base or between two halves of it, 0.90 to 0.98.

    Limits: the correction for bias takes tokens as drawn one by one. Those of one document are alike, so n of them
    count for fewer and the distance stays too large: two samples of one text do not reach 1, but 0.95 at 16,384 tokens
    each, 0.89 at 4,096 and 0.6 at 512. Few tokens hide that experts are alike; they did not make different ones look
    alike (0.29 at most at 512).

    Costs three times `leading_directions`, O(H² r), and holds about five H × H matrices of float64 at a time.

    `rank` is r, the directions looked along, lowered to H, and to the fewer tokens / `TOKENS_PER_DIRECTION`. At H = 256
    anything from 8 to 32 tells one text from another. Scales may differ.

    Raises:
        ValueError: the channels differ in number, rank is below 1, an expert has fewer than 4 tokens, or a Gram is that
            of no activations.
    """
    rank = _comparable(a, b, a.exponents.numel(), b.exponents.numel(), rank)
    (mean_a, scatter_a), (mean_b, scatter_b) = centred(a), centred(b)
    products = leading_directions(scatter_a, rank).T @ leading_directions(scatter_b, rank)
    return _compared(scatter_a, scatter_b, mean_a - mean_b, products, a.count, b.count)


def _comparable(a: "Statistics | Summary", b: "Statistics | Summary", size: int, other: int, rank: int) -> int:
    """Return how many directions to look along, for experts of `size` and `other` channels (errors as `overlap`)."""
    if size != other:
        raise ValueError(f"{size:,} channels cannot be compared with {other:,}")
    if rank < 1:
        raise ValueError(f"rank is {rank}, it must be 1 or more")
    fewer = min(a.count, b.count)
    if fewer < TOKENS_PER_DIRECTION:
        raise ValueError(f"{fewer} tokens of an expert are too few to compare it: at least {TOKENS_PER_DIRECTION}")
    return min(rank, size, fewer // TOKENS_PER_DIRECTION)


def _compared(
    scatter_a: Float[Tensor, "d d"],
    scatter_b: Float[Tensor, "d d"],
    difference: Float[Tensor, "d"],
    products: Float[Tensor, "r r"],
    n_a: int,
    n_b: int,
) -> Overlap:
    """Return the overlap, by each C in orthonormal coordinates (the first is overwritten), by δ and by U_aᵀ U_b."""
    rank = len(products)
    subspace = products.square().sum() / rank
    total = (scatter_a / (2 * n_a)).add_(scatter_b, alpha=1 / (2 * n_b)).addr_(difference, difference / 4)
    shared = leading_directions(total, min(rank, len(total)))
    within = shared.T @ scatter_a.add_(scatter_b) @ shared / (n_a + n_b - 2)
    distance = distance_along(within, shared.T @ difference, n_a, n_b)
    return Overlap(distance, math.erfc(distance / math.sqrt(8)), min(1.0, float(subspace)))


def leading_directions(matrix: Float[Tensor, "H H"], rank: int) -> Float[Tensor, "H r"]:
    """Return the eigenvectors of the r = `rank` ≤ H largest eigenvalues of a positive semidefinite matrix, in order.

    Up to H = `SMALL` from the full eigendecomposition, O(H³). Beyond, block Krylov iteration from a fixed start
    (Musco & Musco 2015, *NeurIPS*, algorithm 2): each step is made orthonormal by QR, and the best directions within
    the span of all steps are taken; O(H² r) a step. Eigenvalues of MLP inputs fall about as i^-1, and `STEPS` = 8 then
    miss 1e-9 of the subspace (1 − ‖ÛᵀU‖²_F/r); at i^-0.3, 2e-5. Threads may change the last bits.
    """
    size, columns = len(matrix), max(rank, LEAST_COLUMNS)
    if size <= max(SMALL, columns * STEPS):
        return _leading(matrix, rank)
    draw = torch.Generator().manual_seed(0)
    block = torch.empty((size, columns), dtype=matrix.dtype).normal_(generator=draw).to(matrix.device)
    steps = []
    for _ in range(STEPS):
        block = torch.linalg.qr(matrix @ block).Q
        steps.append(block)
    basis = torch.linalg.qr(torch.cat(steps, dim=1)).Q
    directions: Tensor = basis @ _leading(basis.T @ matrix @ basis, rank)
    return directions


def _leading(matrix: Float[Tensor, "d d"], rank: int) -> Float[Tensor, "d r"]:
    vectors: Tensor = torch.linalg.eigh(matrix).eigenvectors[:, -rank:].flip(1)
    return vectors


def distance_along(within: Float[Tensor, "d d"], difference: Float[Tensor, "d"], n_a: int, n_b: int) -> float:
    """Return Δ̂ from D² = δᵀ Σ⁻¹ δ, by Cholesky; N > d + 3.

        Δ̂² = (N − d − 3)/(N − 2) · D² − d (1/n_a + 1/n_b), and 0 where that is negative

    has no bias for Gaussians (Lachenbruch & Mickey 1968, *Technometrics* 10, 1–11; McLachlan 1992): it follows
    from D² · n_a n_b (N − d − 1) / (N (N − 2) d), a noncentral F of d and N − d − 1 degrees of freedom, by its mean.
    d counts what varies; a difference along what does not is a large distance. Adds to `within`.

    (ValueError: `within` is not positive semidefinite.)
    """
    diagonal = within.diagonal()
    mean = float(diagonal.mean())
    if mean <= 0:
        return math.inf if bool(difference.any()) else 0.0
    size, tokens = int((diagonal > RIDGE * mean).sum()), n_a + n_b
    within.diagonal().add_(RIDGE * mean)
    factor, info = torch.linalg.cholesky_ex(within)
    if int(info) != 0:
        raise ValueError("a Gram is that of no activations: it is not positive semidefinite")
    squared = float(torch.linalg.solve_triangular(factor, difference[:, None], upper=False).square().sum())
    return math.sqrt(max(0.0, (tokens - size - 3) / (tokens - 2) * squared - size * (1 / n_a + 1 / n_b)))


def centred(of: Statistics) -> tuple[Float[Tensor, "H"], Float[Tensor, "H H"]]:
    """Return (μ, C). Of a channel that does not vary, C is exactly 0."""
    moment = of.moment
    mean = moment / of.count
    return mean, of.gram.addr_(moment, mean, alpha=-1)


@dataclass(frozen=True, eq=False)
class Summary:
    """Summary of one expert's statistics at one layer, from which overlaps are estimated without its Gram.

    It is μ, U, of orthonormal columns, those along which the tokens vary most first, Λ, the diagonal of Uᵀ C U, ρ ≥ 0
    and n.
    """

    mean: Float[Tensor, "H"]
    directions: Float32[Tensor, "H K"]
    spread: Float[Tensor, "K"]
    rest: float
    count: int

    @classmethod
    def of(cls, statistics: Statistics, directions: int = DIRECTIONS) -> "Summary":
        """Return the summary of at least one token, with min(`directions`, H) (ValueError: no Gram of activations)."""
        if statistics.count < 1:
            raise ValueError("a Gram is that of no activations: it counts none")
        mean, scatter = centred(statistics)
        size = len(mean)
        least = -ROUNDING * (float(scatter.diagonal().abs().sum()) + statistics.count * float(mean.square().sum()))
        leading = leading_directions(scatter, min(directions, size))
        spread = (leading * (scatter @ leading)).sum(dim=0)
        others, rest = size - len(spread), float(scatter.diagonal().sum() - spread.sum())
        if min(rest, float(spread.min()), float(scatter.diagonal().min())) < least:
            raise ValueError("a Gram is that of no activations: it is not positive semidefinite")
        rest = max(0.0, rest) / others if others else 0.0
        return cls(mean.cpu(), leading.float().cpu(), spread.clamp_min(0).cpu(), rest, statistics.count)


def summary_overlap(a: Summary, b: Summary, rank: int = 16) -> Overlap:
    """Estimate `overlap` of the statistics that two summaries hold (arguments and errors as there)."""
    size, kept = a.directions.shape
    rank = min(_comparable(a, b, size, len(b.mean), rank), kept, b.directions.shape[1])
    difference = a.mean - b.mean
    length = float(difference.norm())
    spanning = torch.cat([a.directions.double(), b.directions.double(), difference[:, None] / (length or 1.0)], dim=1)
    products = spanning.T @ spanning
    leading = products[:rank, kept : kept + rank]
    inside = _embedded(products, size)
    offset = inside[:, -1] * length
    scatter_a = _within(inside[:, :kept], a)
    scatter_b = _within(inside[:, kept:-1], b)
    return _compared(scatter_a, scatter_b, offset, leading, a.count, b.count)


def _embedded(products: Float[Tensor, "v v"], size: int) -> Float[Tensor, "d v"]:
    """Return vectors of these inner products, of H = `size` channels, in orthonormal coordinates.

    By Cholesky where there is room for all of them, also for those that depend on others, which take a direction
    outside the span, along which tokens vary by ρ. Else in coordinates of the span alone.
    """
    if len(products) <= size:
        products.diagonal().add_(ROUNDING)
        factor, info = torch.linalg.cholesky_ex(products, upper=True)
        if int(info) == 0:
            upper: Tensor = factor
            return upper
    values, vectors = torch.linalg.eigh(products)
    sound = values > DEPENDENT
    inside: Tensor = (vectors[:, sound] / values[sound].sqrt()).T @ products
    return inside


def _within(directions: Float[Tensor, "d K"], of: Summary) -> Float[Tensor, "d d"]:
    """Return C in orthonormal coordinates in which its leading directions are `directions`."""
    scatter = (directions * (of.spread - of.rest)) @ directions.T
    scatter.diagonal().add_(of.rest)
    return scatter
