"""Low-rank adapters as changes of the matrix that they adapt: LoRA, rsLoRA and DoRA, and the nearest of a rank.

A linear layer has W of shape (O, I): O outputs, I inputs. Its adapter has A (r, I) and B (O, r) of rank r and a
scaling s. An embedding of V tokens is the matrix (H, V): its tensor of shape (V, H), transposed.

Merges are computed in float32 and in the order in which PEFT merges, so that the bits are the same.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def lora_scaling(alpha: float, rank: int, *, stabilised: bool) -> float:
    """Return s: α / r (LoRA, Hu et al. 2021, §4.1), or α / √r (rsLoRA, Kalajdzievski 2023, theorem 3.2)."""
    return alpha / (math.sqrt(rank) if stabilised else rank)


def lora_delta(a: Float[Tensor, "r I"], b: Float[Tensor, "O r"], scaling: float) -> Float[Tensor, "O I"]:
    """Return ΔW = s · B A in float32 (LoRA, Hu et al. 2021, eq. 3), of factors in any floating dtype."""
    return (b.float() @ a.float()) * scaling


def spectrum(delta: Float[Tensor, "O I"]) -> Float[Tensor, "m"]:
    """Return the squares of the singular values of ΔW, the largest first, float64; m is the less of O and I."""
    narrow = (delta if delta.shape[0] <= delta.shape[1] else delta.T).double()
    squares: Tensor = torch.linalg.eigvalsh(narrow @ narrow.T).flip(0).clamp(min=0)
    return squares


def truncated(delta: Float[Tensor, "O I"], rank: int) -> tuple[Float[Tensor, "r I"], Float[Tensor, "O r"]]:
    """Return float64 A and B of a rank whose B A is nearest to ΔW (Eckart and Young 1936): ΔW on its main directions.

    With U the first r singular vectors on its narrow side that is U Uᵀ ΔW or ΔW U Uᵀ, whose error is the sum of the
    `spectrum` from the r-th on. The scaling is 1.
    """
    wide = delta.shape[0] <= delta.shape[1]
    narrow = (delta if wide else delta.T).double()
    main = torch.linalg.eigh(narrow @ narrow.T)[1][:, -rank:].flip(1)  # (m, r)
    along = main.T @ narrow
    return (along, main) if wide else (main.T, along.T)


def dora_weight(
    weight: Float[Tensor, "O I"], delta: Float[Tensor, "O I"], magnitude: Float[Tensor, "O"]
) -> Float[Tensor, "O I"]:
    """Return W′ = m ∘ (W + ΔW) / ‖W + ΔW‖ in float32 (DoRA, Liu et al. 2024, eq. 5).

    The norm is that of the weights of each output; the paper writes W as (I, O) and so takes it column by column. m is
    the norm that each output's weights shall have.
    """
    total = weight + delta
    factor: Tensor = magnitude.float() / torch.linalg.norm(total, dim=1)
    return factor[:, None] * total
