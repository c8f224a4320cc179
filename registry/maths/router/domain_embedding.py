"""The router of mean features: row e is the mean MLP input of expert e's text (FlexOlmo §3.3.2)."""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from registry.maths.router.solve import as_gate, solve
from registry.maths.statistics import PackedStatistics, Statistics


def domain_embedding(
    statistics: Iterable[Statistics | PackedStatistics],
    lam: float = 0.0,
    bias: Sequence[float] = (),
    normalize: bool = True,
) -> Float[Tensor, "E H"]:
    """Return gate.weight of one layer, float64: row e is μ_e = s_e / n_e, at unit length, plus its bias.

    FlexOlmo starts row e as the mean embedding of expert e's text and adds a bias b_e < 0 to its logit, so that a token
    goes to an expert only where that clearly fits. Here the feature is the layer's MLP input in the base model.

    No host stores a router bias, and a constant is no linear function of x. The linear function nearest to it over the
    members' text carries it approximately:

        w_0 = argmin_w Σ_t (w·x_t − 1)² + lam ‖w‖² = (Σ_e A_e + lam·I)⁻¹ Σ_e s_e        row e += b_e w_0

    after the row got its length, so that b_e counts in logits. A bias equal for all members adds one number to all
    logits of a token and changes no choice: it is differences that count.

    Args:
        statistics: one a member, of that expert's text in the base model. Taken one at a time; Grams are summed only
            where there is a bias.
        lam: λ ≥ 0 of w_0, absolute.
        bias: b_e, one a member; empty for zeros.
        normalize: False leaves μ_e as it is.

    Raises:
        ValueError: an expert has no tokens or a mean of zero, there are not as many biases as members, or the
            regularised Gram is not positive definite.
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
    if bias and len(bias) != len(moments):
        raise ValueError(f"{len(bias)} biases do not go with {len(moments)} experts")
    columns = torch.stack(moments, dim=1)
    gate = as_gate(columns / torch.tensor(counts, dtype=torch.float64), normalize)
    if gram is None:
        return gate
    constant = solve(gram, columns.sum(dim=1, keepdim=True), lam)[:, 0]
    return gate + torch.tensor(bias, dtype=torch.float64)[:, None] * constant
