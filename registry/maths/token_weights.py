"""Token weights from the advantage of an expert over the base model on each token.

A router that errs costs what the right expert would have gained. Ridge regression weighs all tokens alike; with

    w_t = clip((ℓ_base,t − ℓ_expert,t) / step, floor, cap / step), rounded      ℓ: negative log-likelihood in nats

it minimises Σ_t w_t ‖Wᵀx_t − 1_e‖² instead, and errors move from the costly tokens to the cheap ones. w_t depends on
the one expert and the base only, so weighted statistics (`Statistics.of`) are additive like others.
"""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from registry.maths.statistics import WEIGHT_LIMIT

STEP = 1 / 16
"""Nats of one unit of weight."""

CAP = 4.0
"""Nats beyond which a token counts no more: one rare word does not outweigh a page. 4 nats are weight 64."""

FLOOR = 1
"""The least weight."""


def advantage_weights(
    base_loss: Float[Tensor, "T"],
    expert_loss: Float[Tensor, "T"],
    *,
    step: float = STEP,
    cap: float = CAP,
    floor: int = FLOOR,
) -> Int64[Tensor, "T"]:
    """Return w_t, integers from `floor` to cap / step (rounded half to even).

    The floor is not 0, because the Gram is to say how all of the expert's text varies, not only the tokens that it
    wins: with 0, an expert that wins nowhere would have no statistics and no router row at all. At 1 a token that the
    expert loses counts a sixteenth of a nat.

    Args:
        base_loss: ℓ_base,t of the prediction that the base model makes at token t, in nats.
        expert_loss: ℓ_expert,t, on the same text.
        step: nats a unit, > 0.
        cap: nats, ≥ step; cap / step ≤ `WEIGHT_LIMIT`.
        floor: from 0 to cap / step.

    Raises:
        ValueError: a loss is NaN or infinite, the losses differ in number, or step, cap or floor is out of range.
    """
    if base_loss.shape != expert_loss.shape:
        raise ValueError(f"{base_loss.numel()} losses of the base do not go with {expert_loss.numel()} of the expert")
    if not (math.isfinite(step) and step > 0 and step <= cap <= step * WEIGHT_LIMIT):
        raise ValueError(f"step {step} and cap {cap} must be 0 < step ≤ cap ≤ {WEIGHT_LIMIT} · step")
    largest = round(cap / step)
    if not 0 <= floor <= largest:
        raise ValueError(f"floor is {floor}, it must be 0 to {largest}")
    gain = base_loss.double() - expert_loss.double()
    if not bool(torch.isfinite(gain).all()):
        raise ValueError("a loss is NaN or infinite")
    return torch.round(gain / step).clamp(floor, largest).to(torch.int64)
