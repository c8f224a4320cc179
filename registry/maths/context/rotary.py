"""Rotary positions as a window: the queries and keys whose attention falls exponentially with the distance.

A rotary embedding turns channel pair i by θ_i a position (Su et al. 2021, RoFormer, eq. 34). With a constant query and
key, (√A_i, 0) in pair i, the score of a token Δ positions back is

    s(Δ) = Σ_i A_i cos(θ_i Δ)                       A_i ≥ 0

and attention weighs it by exp(s(Δ)), the same wherever it stands. What s falls from 0 to Δ is Σ_i A_i (1 − cos θ_i Δ),
and since ∫ (1 − cos θΔ) / θ² dθ = π |Δ| / 2, amplitudes A_i ∝ (spacing of ln θ at i) / θ_i make it a straight line:
attention weighs the past by exp(−Δ/τ), which is recency. The line ends where the slowest pair has turned half around;
further away s stays low if enough pairs are used, and so nothing far comes back. The fewest pairs whose weights are
close enough to the exponential over the whole context are used.

Frequencies are those of transformers' `modeling_rope_utils`, in float64. Where they depend on the length of the text
(dynamic, longrope) there are two tables, for short and for long texts, and one set of amplitudes serves both.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

CLOSE = 0.02
"""Total variation between the window and the exponential that is close enough."""

BETTER = 0.002
"""By how much more pairs must come closer to be used."""

LARGEST = 6.0
"""The largest amplitude: 16 bits round the score of a pair to 1 in 256 of it."""

USABLE = 0.1
"""Total variation up to which a window is used at all."""

_NEAR, _STRIDE = 8192, 13
"""Every distance is looked at up to the first number, and one in the second beyond it."""


@dataclass(frozen=True)
class RotaryTables:
    """The frequencies of a rotary embedding.

    Attributes:
        tables: θ of each pair in radians a position, (d / 2,) in float64; several where they depend on the length.
        factor: what queries and keys are multiplied by each.
        context: the longest text, in tokens.
    """

    tables: tuple[Float[Tensor, "_"], ...]
    factor: float
    context: int


def rotary_tables(parameters: Mapping[str, Any], head_dim: int, context: int) -> RotaryTables:
    """Return the frequencies of a rope over whole heads of d = `head_dim`, in the form of transformers 5.

    The longest text has `context` tokens (ValueError: the rope's type is unknown).
    """
    kind, theta = parameters.get("rope_type", "default"), float(parameters["rope_theta"])
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    plain = theta**-exponents
    factor = float(parameters.get("factor") or 1.0)
    if kind == "default":
        return RotaryTables((plain,), 1.0, context)
    if kind == "linear":
        return RotaryTables((plain / factor,), 1.0, context)
    if kind == "llama3":
        return RotaryTables((_llama3(plain, parameters),), 1.0, context)
    if kind == "dynamic":
        longest = theta * (factor * max(1.0, factor) - (factor - 1)) ** (head_dim / (head_dim - 2))
        return RotaryTables((plain, longest**-exponents), 1.0, context)
    original = int(parameters["original_max_position_embeddings"])
    if kind == "yarn":
        factor = factor if parameters.get("factor") else context / original
        return RotaryTables((_yarn(plain, theta, factor, original, parameters),), _mscale(factor, parameters), context)
    if kind == "longrope":
        tables = tuple(
            plain / torch.tensor(parameters[name], dtype=torch.float64) for name in ("short_factor", "long_factor")
        )
        return RotaryTables(tables, _longrope_factor(parameters, context, original), context)
    raise ValueError(f"rope type {kind!r} is unknown")


def recency_amplitudes(rotary: RotaryTables, tau: float) -> Float[Tensor, "_"] | None:
    """Return A of each pair, float64, whose weights are exp(−Δ/τ) up to `CLOSE`, or as near as these pairs come.

    None where no choice of pairs comes as near as `USABLE` over the whole context. τ ≥ 1 is in tokens.
    """
    distance, stands_for = _distances(rotary.context)
    wanted = torch.softmax(stands_for.log() - distance / tau, dim=0)
    shape = _spectrum(rotary.tables[0]).clamp(max=LARGEST * math.pi * tau / 2)  # of a straight line: times 2 / (π τ)
    falls = [torch.zeros_like(distance) for _ in rotary.tables]
    slopes = [0.0 for _ in rotary.tables]
    best: tuple[float, int, float] | None = None
    for pairs, amplitude in enumerate(shape.tolist(), start=1):
        for number, table in enumerate(rotary.tables):
            falls[number] += amplitude * (1 - torch.cos(table[pairs - 1] * distance))
            slopes[number] += amplitude * (1 - math.cos(float(table[pairs - 1]) * 2 * tau))
        # So that s has fallen by 2 at Δ = 2 τ; of two tables, in the middle of both.
        scale = 2 / math.prod(slopes) ** (1 / len(slopes))
        apart = max(
            float((torch.softmax(stands_for.log() - scale * fall, dim=0) - wanted).abs().sum()) / 2 for fall in falls
        )
        if best is None or apart < best[0] - BETTER:
            best = (apart, pairs, scale)
        if apart <= CLOSE:
            break
    assert best is not None
    apart, pairs, scale = best
    if apart > USABLE:
        return None
    amplitudes = torch.zeros_like(shape)
    amplitudes[:pairs] = shape[:pairs] * scale
    return amplitudes


def _distances(context: int) -> tuple[Float[Tensor, "_"], Float[Tensor, "_"]]:
    """Return distances over a context, and how many tokens each stands for: far away, one in `_STRIDE`."""
    near = torch.arange(min(context, _NEAR), dtype=torch.float64)
    far = torch.arange(_NEAR, max(context, _NEAR), _STRIDE, dtype=torch.float64)
    counts = torch.cat([torch.ones_like(near), torch.full_like(far, _STRIDE)])
    return torch.cat([near, far]), counts


def recency_weights(rotary: RotaryTables, amplitudes: Float[Tensor, "_"], length: int) -> Float[Tensor, "_"]:
    """Return exp(s(Δ) − s(0)) for Δ = 0 … length − 1, float64: how attention weighs the past of a short text."""
    distance = torch.arange(length, dtype=torch.float64)
    angles = rotary.tables[0][:, None] * distance  # (d / 2, length)
    return torch.exp(-(amplitudes[:, None] * (1 - torch.cos(angles))).sum(dim=0))


def _spectrum(table: Float[Tensor, "_"]) -> Float[Tensor, "_"]:
    """Return the spacing of ln θ at each pair, over θ; the spacing of the first and the last is that of one side."""
    logs = torch.log(table)
    spacing = torch.empty_like(logs)
    spacing[1:-1] = (logs[:-2] - logs[2:]) / 2
    if len(logs) > 1:
        spacing[0], spacing[-1] = logs[0] - logs[1], logs[-2] - logs[-1]
    else:
        spacing[:] = 1.0
    return spacing.clamp(min=0.0) / table


def _llama3(plain: Float[Tensor, "_"], parameters: Mapping[str, Any]) -> Float[Tensor, "_"]:
    factor, original = float(parameters["factor"]), int(parameters["original_max_position_embeddings"])
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    turns = original * plain / (2 * math.pi)  # within the original context
    smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - smooth) * plain / factor + smooth * plain


def _yarn(
    plain: Float[Tensor, "_"], theta: float, factor: float, original: int, parameters: Mapping[str, Any]
) -> Float[Tensor, "_"]:
    size = 2 * len(plain)

    def pair_of(turns: float) -> float:
        return (size * math.log(original / (turns * 2 * math.pi))) / (2 * math.log(theta))

    low, high = (pair_of(float(parameters.get(name) or turns)) for name, turns in (("beta_fast", 32), ("beta_slow", 1)))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(len(plain), dtype=torch.float64) - low) / (high - low)).clamp(0.0, 1.0)
    return plain / factor * ramp + plain * (1 - ramp)


def _mscale(factor: float, parameters: Mapping[str, Any]) -> float:
    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])

    def scaled(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0

    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return scaled(float(parameters["mscale"])) / scaled(float(parameters["mscale_all_dim"]))
    return scaled(1.0)


def _longrope_factor(parameters: Mapping[str, Any], context: int, original: int) -> float:
    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])
    factor = float(parameters.get("factor") or context / original)
    return 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original))
