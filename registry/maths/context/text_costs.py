"""Costs of a text under experts' counts of tokens, and the loss that is predicted of a composition of some of them.

A piece i of a text, in which token v stands n_i(v) times of n_i, costs expert e, in nats a token,

    C_ie = −Σ_v n_i(v) log p̃_e(v) / n_i        p̃_e(v) = (p_e(v) + β p̄(v) + γ / V) / (1 + β + γ)

with p_e, p̄, β and γ as in `registry.maths.context.evidence`: the expert of the least cost is that of the most evidence,
which context routers choose. A composition of the experts S is predicted to have the loss

    L(S) = Σ_i n_i min_{e ∈ S} C_ie / Σ_i n_i

It is the loss of unigrams, and tells compositions apart; that of a language model is lower. It never rises with another
expert, and each lowers it less the more are there, so that taking the best one by one comes near the best subset
(Nemhauser, Wolsey & Fisher 1978, *Mathematical Programming* 14, for the location of facilities).

An expert's own text costs it what its counts cost, each token scored without itself (leaving-one-out: Ney, Essen &
Kneser 1994, *Computer Speech and Language* 8). A text that costs much more is not of that expert's kind.

Shapes: W pieces of S tokens, V tokens of the vocabulary, U of them in the text, E experts.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from registry.maths.context.evidence import FLOOR, SMOOTHING
from registry.maths.threads import one_thread


def text_costs(
    ids: Int[Tensor, "W S"], keep: Bool[Tensor, "W S"], counts: Sequence[Int64[Tensor, "_"]]
) -> tuple[Float[Tensor, "W E"], Float[Tensor, "W"], Float[Tensor, "E"]]:
    """Return C, the tokens n_i of each piece, and what each expert's own text costs it; all float64.

    `keep` is True where a token counts, of which each piece has one. `counts` are those of each expert, which may be
    sparse; one that is shorter than another counts 0 for the tokens that it lacks.

    (ValueError: there is no expert, or one counted no token.)
    """
    totals = [int(own.sum()) for own in counts]
    if min(totals, default=0) < 1:
        raise ValueError("every expert needs counts of tokens, and there must be one")
    used, places = ids[keep].long().unique(return_inverse=True)
    size = max(int(used[-1]) + 1, *(len(own) for own in counts))
    pieces = torch.zeros((len(ids), len(used)), dtype=torch.float64)  # (W, U)
    pieces.index_put_((keep.nonzero()[:, 0], places), torch.ones((), dtype=torch.float64), accumulate=True)
    lengths = pieces.sum(dim=1)
    floor = torch.zeros(size, dtype=torch.float64)
    for own, total in zip(counts, totals, strict=True):
        floor[: len(own)] += own.to_dense() * (SMOOTHING / total / len(counts))
    floor += FLOOR / size
    logs, costs = torch.zeros((len(used), len(counts)), dtype=torch.float64), []
    for number, (own, total) in enumerate(zip(counts, totals, strict=True)):
        count = torch.zeros(size, dtype=torch.float64)
        count[: len(own)] = own.to_dense()
        logs[:, number] = _log(count[used] / total, floor[used])
        some = count.nonzero()[:, 0]
        left = _log((count[some] - 1) / max(total - 1, 1), floor[some])
        costs.append(-float(count[some] @ left) / total)
    with one_thread():
        return -(pieces @ logs) / lengths[:, None], lengths, torch.tensor(costs, dtype=torch.float64)


def _log(share: Float[Tensor, "U"], floor: Float[Tensor, "U"]) -> Float[Tensor, "U"]:
    return torch.log((share + floor) / (1 + SMOOTHING + FLOOR))


def losses_with(costs: Float[Tensor, "W E"], lengths: Float[Tensor, "W"], chosen: Sequence[int]) -> Float[Tensor, "E"]:
    """Return L of the experts `chosen`, by number, with each expert beside them."""
    least = costs[:, list(chosen)].amin(dim=1, keepdim=True) if chosen else costs.new_tensor(torch.inf)
    return (costs.minimum(least) * lengths[:, None]).sum(dim=0) / lengths.sum()
