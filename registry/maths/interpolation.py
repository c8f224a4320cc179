"""Sparse interpolated experts (SIMoE, Chen et al. 2025): layers between experts, random gates, and the final masks.

Expert m has the weights W + diag(z_m) D, with W frozen, D the same for all experts, and z_m its mask of the layer's
outputs. A window that gives the experts the weights α_m has W + Σ_m α_m diag(z_m) D, so that

    y = W x + g ∘ (D x),  g = Σ_m α_m z_m

are two products for all windows of a batch, whatever weights each gives. SIMoE's slides give a layer's masks the
shape M x Y x 1, which is this, and call what they mask input neurons.

While masks are learned they are hard concrete gates (Louizos et al. 2018, eq. 10-13): random values in [0, 1] that are
often exactly 0 or 1, from a log α for each output (row) of each linear layer; all layers' entries stand in one row.

Shapes: B windows of S tokens, n experts, I inputs, O outputs, H hidden size, R outputs of all linear layers.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.nn import functional

GAMMA, ZETA = -0.1, 1.1
"""The interval (γ, ζ) that a concrete variable is stretched to before it is cut at 0 and 1."""
TEMPERATURE = 2 / 3
"""β, the temperature of the concrete variable."""
_SMALLEST = 1e-12


def expert_weights(prompt: Float[Tensor, "B H"], router: Float[Tensor, "n H"]) -> Float[Tensor, "B n"]:
    """Return α, the softmax over the experts of the products of router rows with the mean embedding of a prompt.

    That an input has one α, of a learned router, is SIMoE's; the router of the mean embedding is ours.
    """
    return functional.linear(prompt, router).softmax(dim=-1)


def change(
    x: Float[Tensor, "B S I"], delta: Float[Tensor, "O I"], gates: Float[Tensor, "B O"]
) -> Float[Tensor, "B S O"]:
    """Return g ∘ (D x), which is added to W x + b."""
    return gates[:, None, :] * functional.linear(x, delta)


def expert_weight(
    base: Float[Tensor, "O I"], delta: Float[Tensor, "O I"], mask: Float[Tensor, "O"]
) -> Float[Tensor, "O I"]:
    """Return W + diag(z) D."""
    return base + mask[:, None] * delta


def sampled_gates(log_alpha: Float[Tensor, "*shape"], uniform: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return gates z for uniform numbers u in [0, 1).

    s = sigmoid((log u - log(1 - u) + log α) / β),  z = min(1, max(0, s (ζ - γ) + γ))        (eq. 10-11)
    """
    s = torch.sigmoid((uniform.log() - (1 - uniform).log() + log_alpha) / TEMPERATURE)
    return (s * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def expected_gates(log_alpha: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the gates without noise, min(1, max(0, sigmoid(log α) (ζ - γ) + γ)) (eq. 13)."""
    return (torch.sigmoid(log_alpha) * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def expected_sparsity(log_alpha: Float[Tensor, "n R"]) -> Float[Tensor, ""]:
    """Return the expected share of closed gates, 1 - mean P(z ≠ 0); P = sigmoid(log α - β log(-γ / ζ)) (eq. 12)."""
    closed: Tensor = 1 - torch.sigmoid(log_alpha - TEMPERATURE * math.log(-GAMMA / ZETA))
    return closed.mean()


def overlap_matrix(masks: Float[Tensor, "n R"]) -> Float[Tensor, "n n"]:
    """Return ⟨z_m, z_m'⟩ / (‖z_m‖ ‖z_m'‖) of every two masks, in [0, 1]; of a mask of zeros, 0 with any and itself."""
    unit = masks / masks.norm(dim=1, keepdim=True).clamp(min=_SMALLEST)
    products: Tensor = unit @ unit.T
    return products.clamp(0, 1)


def orthogonality(layers: Sequence[Float[Tensor, "n _"]]) -> Float[Tensor, ""]:
    """Return the mean over linear layers of ‖Z Zᵀ - I‖, of masks or gates in [0, 1] as they are, from 0 on.

    It is SIMoE's orthogonal penalty, whose Z is that of one linear layer, (M, Y, 1). Its slides write ‖·‖_2, which is
    read here as the root of the sum of squares, and do not say how layers are joined. *Measured*, 6.8M
    weights: one norm of all layers' gates closed every gate, the layers' mean leaves as many open as was asked for.
    It is lowest where masks are disjoint and have one open gate each: its diagonal, the squares of (‖z_m‖² - 1),
    closes gates whether they overlap or not.
    """
    identity = torch.eye(len(layers[0]), device=layers[0].device, dtype=layers[0].dtype)
    distances = [torch.linalg.matrix_norm(gates @ gates.T - identity) for gates in layers]
    return torch.stack(distances).mean()


def overlap(masks: Float[Tensor, "n R"]) -> Float[Tensor, ""]:
    """Return the mean overlap of two different masks, in [0, 1]; 0 of one mask."""
    count = len(masks)
    if count < 2:
        return masks.sum() * 0
    matrix = overlap_matrix(masks)
    return (matrix.sum() - matrix.diagonal().sum()) / (count * (count - 1))


def next_multiplier(multiplier: float, sparsity: float, least: float, rate: float) -> float:
    """Return λ after a step of dual ascent: λ + rate (τ - s) while s < τ, else 0. s is the expected sparsity.

    λ begins again at 0 where the masks are as sparse as asked for (dual restarts, Gallego-Posada et al. 2022): it has
    grown while they were not, and would close gates for as long again.
    """
    return multiplier + rate * (least - sparsity) if sparsity < least else 0.0


def final_masks(log_alpha: Float[Tensor, "n R"], least: float) -> tuple[Bool[Tensor, "n R"], int]:
    """Return the masks that stay, with a share of zeros of at least τ, and the number of gates closed for that.

    As many gates as are expected to be open (eq. 12) are, but for those too many: the ones of the largest log α, of
    equal ones the first. Training meets the sparsity with gates that are open now and then, too, so that a bound on
    each gate's own value would close far more. `least` is τ, from 0 to below 1.
    """
    count = log_alpha.numel()
    allowed = min(count, math.ceil(count * (1 - least)) + 1)
    while (count - allowed) / count < least:
        allowed -= 1
    expected = round((1 - float(expected_sparsity(log_alpha))) * count)
    kept = log_alpha.flatten().argsort(descending=True, stable=True)[: min(expected, allowed)]
    masks = torch.zeros_like(log_alpha, dtype=torch.bool)
    return masks.flatten().index_fill(0, kept, value=True).view_as(masks), max(0, expected - allowed)


def pack_bits(mask: Bool[Tensor, "R"]) -> UInt8[Tensor, "P"]:
    """Return a mask in bits, the first entry in the lowest bit of the first byte; P = ⌈R / 8⌉."""
    bits = torch.nn.functional.pad(mask.to(torch.uint8), (0, -len(mask) % 8)).view(-1, 8)
    return (bits << torch.arange(8, dtype=torch.uint8, device=mask.device)).sum(dim=1, dtype=torch.uint8)


def unpack_bits(packed: UInt8[Tensor, "P"], count: int) -> Bool[Tensor, "R"]:
    """Return the mask of `count` entries that `pack_bits` packed."""
    bits = (packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1
    return bits.flatten()[:count].bool()
