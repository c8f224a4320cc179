"""Mathematics of router methods: statistics, or rows, become the gate of a layer. Solved on one thread, in float64.

And what trainings take of it: the row that an expert's training begins with, and the discriminant of two texts.
"""

import hashlib
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from registry.maths.cholesky import cholesky_factor, cholesky_solved
from registry.maths.statistics import GramSum, PackedStatistics, Statistics
from registry.maths.threads import one_thread


def solve(gram: Float[Tensor, "H H"], moments: Float[Tensor, "H E"], lam: float) -> Float[Tensor, "H E"]:
    """Return (gram + lam·I)⁻¹ moments, float64, the same whatever the number of threads.

    Adds to `gram`, of which the upper triangle alone is read (ValueError: the sum is not positive definite).
    """
    gram.diagonal().add_(lam)
    with one_thread():
        factor, order = cholesky_factor(gram)
        if order:
            raise ValueError(f"the summed Gram plus {lam:g}·I is not positive definite (order {order} of {len(gram)})")
        return cholesky_solved(factor, moments)


def as_gate(columns: Float[Tensor, "H E"], normalize: bool) -> Float[Tensor, "E H"]:
    """Return the columns as rows, each at unit length if `normalize` (ValueError: a column is zero or not finite)."""
    with one_thread():
        norms = columns.norm(dim=0)
    if not bool((norms > 0).all()) or not bool(torch.isfinite(columns).all()):
        raise ValueError("a router column is zero or not finite")
    gate: Tensor = (columns / norms if normalize else columns).T.contiguous()
    return gate


def ridge(total: GramSum, lam: float, normalize: bool = True) -> Float[Tensor, "E H"]:
    """Return gate.weight of one layer, float64: row e is expert e's column of W, at unit length.

        W = (Σ_e ω_e A_e + lam·I)⁻¹ [ω_1 s_1 … ω_E s_E]            (H, E), DUME eq. 6–7
        gate.weight = (W / column norms)ᵀ                           (E, H)

    `total` is over the layer's `mlp_input`, and is overwritten; λ ≥ 0 is absolute. Without `normalize` gate.weight is
    Wᵀ, whose logits estimate the experts' shares.

    (ValueError: the regularised Gram is not positive definite, or a column is zero.)
    """
    return as_gate(solve(total.gram, total.moments, lam), normalize)


def balanced(weights: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Return ω_e · n̄ / n_e with n̄ = (Σ n_e)/E: every expert enters the solution with ω_e · n̄ tokens.

    Ratios are those of integers, rounded once: equal counts leave the weights exactly as they are, and the order of
    members does not matter. n̄ rises with any count, so that all Grams grow by one factor against an absolute `lam`.

    (ValueError: a count is below 1.)
    """
    if any(count < 1 for count in counts):
        raise ValueError("an expert without tokens cannot be balanced")
    total = sum(counts)
    return [weight * (total / (len(counts) * count)) for weight, count in zip(weights, counts, strict=True)]


def domain_embedding(
    statistics: Iterable[Statistics | PackedStatistics],
    lam: float = 0.0,
    bias: Sequence[float] = (),
    normalize: bool = True,
) -> Float[Tensor, "E H"]:
    """Return gate.weight of one layer, float64: row e is μ_e = s_e / n_e, at unit length, plus its bias.

    FlexOlmo (§3.3.2) starts row e as the mean embedding of expert e's text and adds a bias b_e < 0 to its logit, so
    that a token goes to an expert only where that clearly fits. Here the feature is the layer's MLP input in the base
    model. No host stores a router bias, so the linear function nearest to a constant over the members' text carries it:

        w_0 = argmin_w Σ_t (w·x_t − 1)² + lam ‖w‖² = (Σ_e A_e + lam·I)⁻¹ Σ_e s_e        row e += b_e w_0

    after the row got its length, so that b_e counts in logits, of which only differences matter.

    Statistics are those of each expert's text in the base model, taken one at a time; Grams are summed only where there
    is a bias. λ ≥ 0 is absolute; without `normalize` μ_e stays as it is.

    Raises:
        ValueError: there is no expert, one has no tokens or a mean of zero, or the regularised Gram is not positive
            definite.
    """
    gram, moments, counts = None, [], []
    for item in statistics:
        if item.count < 1:
            raise ValueError("an expert without tokens has no mean")
        moments.append(item.moment)
        counts.append(item.count)
        if any(bias):
            gram = item.gram if gram is None else gram.add_(item.gram)
    if not moments:
        raise ValueError("a router needs at least one expert")
    columns = torch.stack(moments, dim=1)
    gate = as_gate(columns / torch.tensor(counts, dtype=torch.float64), normalize)
    if gram is None:
        return gate
    constant = solve(gram, columns.sum(dim=1, keepdim=True), lam)[:, 0]
    return gate + torch.tensor(bias, dtype=torch.float64)[:, None] * constant


def random(
    digests: Sequence[str], hidden_size: int, layer: int, seed: int = 0, normalize: bool = True
) -> Float[Tensor, "E H"]:
    """Return gate.weight of one layer, float64: row e is normal, of expected squared length 1 (BTX before training).

    A row is a function of (seed, layer, the member's digest) alone, through SHA-256; copies of one version have
    different digests (`Member.row_key`). With `normalize` rows have unit length exactly.

    (ValueError: there is no expert.)
    """
    if not digests:
        raise ValueError("a router needs at least one expert")
    rows = [_row(f"router {seed} {layer} {digest}", hidden_size) for digest in digests]
    return as_gate(torch.stack(rows, dim=1) / hidden_size**0.5, normalize)


def _row(key: str, hidden_size: int) -> Float[Tensor, "H"]:
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")  # the generator takes 32 bits
    draw = torch.Generator().manual_seed(number)
    return torch.empty(hidden_size, dtype=torch.float64).normal_(generator=draw)


def anchored(rows: Sequence[Float[Tensor, "H"]]) -> Float[Tensor, "E H"]:
    """Return gate.weight of one layer, float64: the members' rows as they were trained (FlexOlmo, §3.3.2).

    Each was trained in a mixture of the public expert and its own alone, whose logits were 0 and r·x; the public logit
    is the anchor that all have in common. The public expert's row is zeros (ValueError: there is no expert).
    """
    if not rows:
        raise ValueError("a router needs at least one expert")
    return torch.stack([row.double() for row in rows])


def initial_row(mean: Float[Tensor, "H"], public: Float[Tensor, "H"]) -> Float[Tensor, "H"]:
    """Return the row that an expert's training begins with in one layer, float64: r = μ/‖μ‖ − μ_pub/‖μ_pub‖.

    FlexOlmo begins r_i as the embedding of domain i's text (§3.3.2), and r_pub, it seems, as that of public text. Here
    the embeddings μ are mean MLP inputs of the layer in the base model, and the public logit is 0.

    (ValueError: a mean is zero, NaN or infinite.)
    """
    rows = torch.stack([mean.double(), public.double()])  # (2, H)
    lengths = rows.norm(dim=1, keepdim=True)  # (2, 1)
    if not bool(torch.isfinite(lengths).all() and (lengths > 0).all()):
        raise ValueError("the mean of a text's MLP inputs is zero or not finite")
    row: Tensor = torch.sub(*(rows / lengths))
    return row


def discriminant(
    own: Statistics | PackedStatistics, other: Statistics | PackedStatistics, lam: float
) -> Float[Tensor, "H"]:
    """Return w = (A + A' + lam·I)⁻¹ (s / n − s' / n'), float64, for the Grams A, moments s and counts n of two texts.

    It is the linear discriminant (Fisher 1936) with the Gram in place of the scatter, or the damped regression of 1 / n
    on the tokens of one text and −1 / n' on those of the other: w·x is large for tokens like those of `own`.

    Scales of the two may differ; λ ≥ 0 is absolute.

    (ValueError: a text has no tokens, or the regularised Gram is not positive definite.)
    """
    if min(own.count, other.count) < 1:
        raise ValueError("a text without tokens has no mean")
    difference = own.moment / own.count - other.moment / other.count
    return solve(own.gram.add_(other.gram), difference[:, None], lam)[:, 0]
