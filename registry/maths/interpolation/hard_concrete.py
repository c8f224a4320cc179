"""Hard concrete gates (Louizos et al. 2018, eq. 10-13): random values in [0, 1] that are often exactly 0 or 1.

Shapes: any; one log α, and one gate, for each element.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

GAMMA, ZETA = -0.1, 1.1
"""The interval (γ, ζ) that a concrete variable is stretched to before it is cut at 0 and 1."""
TEMPERATURE = 2 / 3
"""β, the temperature of the concrete variable."""


def sampled_gates(log_alpha: Float[Tensor, "*shape"], uniform: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return gates z for uniform numbers u in [0, 1).

    s = sigmoid((log u - log(1 - u) + log α) / β),  z = min(1, max(0, s (ζ - γ) + γ))        (eq. 10-11)
    """
    s = torch.sigmoid((uniform.log() - (1 - uniform).log() + log_alpha) / TEMPERATURE)
    return (s * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def open_probability(log_alpha: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return P(z ≠ 0) = sigmoid(log α - β log(-γ / ζ)) (eq. 12)."""
    return torch.sigmoid(log_alpha - TEMPERATURE * math.log(-GAMMA / ZETA))


def expected_gates(log_alpha: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the gates without noise, min(1, max(0, sigmoid(log α) (ζ - γ) + γ)) (eq. 13)."""
    return (torch.sigmoid(log_alpha) * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def open_gates(log_alpha: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Tell which gates are open: those that are more than 1/2 without noise."""
    return expected_gates(log_alpha) > 0.5
