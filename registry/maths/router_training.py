"""Training of a router: routing that a gradient passes, a balance loss, and whitening of the inputs."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def straight_through(
    logits: Float[Tensor, "T E"], top_k: int, candidates: int, temperature: float, *, renormalize: bool = True
) -> tuple[Float[Tensor, "T C"], Int64[Tensor, "T C"]]:
    """Return (weights, chosen) of the C largest logits: the weights of top-k routing, with a gradient for all C.

    Forward the k largest have their softmax and the others 0; at k = 1 that is 1 whatever the logits, of which nothing
    can be learnt. Backward the weights are the softmax of all C candidates' logits / `temperature` (straight-through
    estimator, Bengio 2013, arXiv:1308.3432, §4). Without renormalising, all E logits have a part in both softmaxes.

    Args:
        top_k: experts per token, k ≥ 1.
        candidates: C, from k to E.
        temperature: > 0; below 1, tokens that are nearly undecided count for more.
        renormalize: weights of the k experts add up to 1; otherwise they are those of the softmax over all E.
    """
    largest, chosen = logits.float().topk(candidates, dim=-1)
    if renormalize:
        soft = (largest / temperature).softmax(dim=-1)
        weights = largest[:, :top_k].detach().softmax(dim=-1)
    else:
        soft = (logits.float() / temperature).softmax(dim=-1).gather(-1, chosen)
        weights = logits.detach().float().softmax(dim=-1).gather(-1, chosen[:, :top_k])
    hard = torch.zeros_like(soft)
    hard[:, :top_k] = weights
    return hard + (soft - soft.detach()), chosen


def balance_loss(
    logits: Float[Tensor, "T E"], weights: Float[Tensor, "T C"], chosen: Int64[Tensor, "T C"]
) -> Float[Tensor, ""]:
    """Return E · Σ_e u_e p_e, which is 1 where experts share the tokens evenly, and up to E (BTX §3.3, load balancing).

    u_e is the mean weight that expert e got, p_e the mean of its softmax probability, through which the gradient goes.
    """
    experts = logits.shape[-1]
    used = torch.zeros(experts, device=logits.device).index_add_(0, chosen.flatten(), weights.detach().flatten())
    return experts * (used / len(logits) * logits.float().softmax(dim=-1).mean(dim=0)).sum()


def whitener(gram: Float[Tensor, "H H"], damping: float) -> Float[Tensor, "H H"]:
    """Return the lower triangular M for which M x has unit second moments where x has those of `gram`, float64.

    It is the inverse of the Cholesky factor of gram + `damping` · mean(diagonal) · I (ValueError: there is none).
    """
    gram = gram.double()
    size = len(gram)
    eye = torch.eye(size, dtype=torch.float64, device=gram.device)
    factor, failed = torch.linalg.cholesky_ex(gram + damping * gram.diagonal().mean() * eye)
    if int(failed) or not bool(torch.isfinite(factor).all()):
        raise ValueError("the Gram of a router's inputs is not finite and positive")
    inverse: Tensor = torch.linalg.solve_triangular(factor, eye, upper=False)
    return inverse
