"""A linear layer between experts (SIMoE, Chen et al. 2025).

Expert m has the weights W + diag(z_m) D, with W frozen, D the same for all experts, and z_m its mask of the layer's
outputs. A window that gives the experts the weights α_m has W + Σ_m α_m diag(z_m) D, so that

    y = W x + g ∘ (D x),  g = Σ_m α_m z_m

are two products for all windows of a batch, whatever weights each gives.

Shapes: B windows of S tokens, n experts, I inputs, O outputs, H hidden size.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def expert_weights(prompt: Float[Tensor, "B H"], router: Float[Tensor, "n H"]) -> Float[Tensor, "B n"]:
    """Return α, the softmax over the experts of the products of router rows with the mean embedding of a prompt."""
    return F.linear(prompt, router).softmax(dim=-1)


def mixed_gates(alpha: Float[Tensor, "B n"], masks: Float[Tensor, "n O"]) -> Float[Tensor, "B O"]:
    """Return g = Σ_m α_m z_m of each window."""
    return alpha @ masks


def change(
    x: Float[Tensor, "B S I"], delta: Float[Tensor, "O I"], gates: Float[Tensor, "B O"]
) -> Float[Tensor, "B S O"]:
    """Return g ∘ (D x), which is added to W x + b."""
    return gates[:, None, :] * F.linear(x, delta)


def expert_weight(
    base: Float[Tensor, "O I"], delta: Float[Tensor, "O I"], mask: Float[Tensor, "O"]
) -> Float[Tensor, "O I"]:
    """Return W + diag(z) D."""
    return base + mask[:, None] * delta
