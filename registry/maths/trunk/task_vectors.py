"""Trunk methods that add what they make of task vectors θ_e − θ_0 to the base model θ_0.

Sources: task arithmetic, Ilharco et al. 2022, §2; with a coefficient for each member Soup-of-Experts, Ablin et al.
2025, §2.3, eq. 2. DARE: entries dropped at random and the rest rescaled, Yu et al. 2024, §3.2. TIES: trimmed, a sign
elected, those that agree averaged (Yadav et al. 2023, §3) or added up (MergeME, Zhou et al. 2025, §3.1.2).
"""

import hashlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from registry.maths.trunk.combination import Combination, RowBlock, aligned, average

_LEVELS = 2**32
"""Random numbers that decide on an entry, in `dare`."""
_BITS, _PASSES = 16, 4
"""Four passes of sixteen bits distinguish a float64 from its neighbours, in `ties`."""


def task_arithmetic(combination: Combination) -> Iterator[Tensor]:
    """Yield θ_0 + λ Σ_e ω_e (θ_e − θ_0), the weights ω scaled to a mean of 1; or θ_0 + Σ_e α_e (θ_e − θ_0).

    Option `scale` is λ, and α are the coefficients, where there are any. With α = 1 for one member and 0 for all others
    every number is exactly that member's, unless one of the base model is more than 2^28 times as large.
    """

    def summed(rows: RowBlock) -> Tensor:
        total = None
        for task, weight in task_vectors(rows, combination):
            total = task.mul_(weight) if total is None else total.add_(task, alpha=weight)
        assert total is not None
        return total

    yield from on_base(combination, summed)


def on_base(combination: Combination, merged: Callable[[RowBlock], Tensor]) -> Iterator[Tensor]:
    """Yield θ_0 + λ · `merged`(rows) by rows, in float64; rows that the base model lacks are averaged."""
    for rows in aligned(combination):
        if rows.base is None:
            yield average(rows, combination.weights)
        else:
            scale = 1.0 if combination.coefficients else combination.options["scale"]
            yield merged(rows).mul_(scale).add_(rows.base.double())


def task_vectors(rows: RowBlock, combination: Combination) -> Iterator[tuple[Tensor, float]]:
    """Yield (θ_e − θ_0, what it is multiplied by) of each member, in float64; of a member without the rows, 0.

    It is multiplied by α_e where there are coefficients, else by ω_e scaled to a mean of 1.
    """
    assert rows.base is not None
    base = rows.base.double()
    whole = sum(combination.weights) / len(combination.weights)
    factors = combination.coefficients or [weight / whole for weight in combination.weights]
    for part, factor in zip(rows.parts, factors, strict=True):
        yield (base.new_zeros(base.shape) if part is None else part.double() - base), factor


def dare(combination: Combination) -> Iterator[Tensor]:
    """Yield θ_0 + λ (1/E) Σ_e ω_e m_e ∘ (θ_e − θ_0) / d, the weights ω scaled to a mean of 1; `summed` without 1/E.

    m_e is 1 with probability d, the option `density`, else 0; λ is the option `scale`. m_e follows from the member's
    digest, the tensor's name and the row, so that it is the same in every subset, order and block.
    """
    density = combination.options["density"]

    def summed(rows: RowBlock) -> Tensor:
        total = torch.zeros(())
        for number, (task, weight) in enumerate(task_vectors(rows, combination)):
            mask = kept(combination.digests[number], combination.name, rows.start, task.shape, density)
            total = total + task.mul_(mask).mul_(weight / density)
        return total if combination.summed else total / len(rows.parts)

    yield from on_base(combination, summed)


def kept(digest: str, name: str, start: int, shape: torch.Size, density: float) -> Tensor:
    """Return the mask of rows from `start` on: True where an entry is kept, with probability `density` ±2^-32.

    Each row's bits are SHAKE-128 of digest, name and row number, which no version of any library changes.
    """
    width = shape[1:].numel()
    threshold = round(density * _LEVELS)
    rows = []
    for row in range(start, start + shape[0]):
        noise = hashlib.shake_128(f"{digest} {name} {row}".encode()).digest(4 * width)
        rows.append(torch.frombuffer(bytearray(noise), dtype=torch.int32))
    return (torch.stack(rows).to(torch.int64) + _LEVELS // 2 < threshold).view(shape)


def ties(combination: Combination) -> Iterator[Tensor]:
    """Yield θ_0 + λ τ, where τ is the disjoint mean of the trimmed task vectors, or where `summed` their sum.

    Of each member's task vector τ_e = θ_e − θ_0 the largest share d of its entries by magnitude stays, the option
    `density`, tensor by tensor; entries equal to the smallest that stays do too. The elected sign of an entry is that
    of Σ_e ω_e τ_e; τ is Σ ω_e τ_e / Σ ω_e over the members whose trimmed entry is not 0 and has this sign. The sum is
    Σ ω_e τ_e over the same members, the weights ω scaled to a mean of 1. λ is the option `scale`. Four passes find the
    magnitudes, whatever the tensor's size; one more combines.
    """
    least = _least_kept(combination, combination.options["density"])

    def elected(rows: RowBlock) -> Tensor:
        tasks, weights = [], []
        for number, (task, weight) in enumerate(task_vectors(rows, combination)):
            tasks.append(task.masked_fill_(task.abs() < least[number], 0.0).mul_(weight))
            weights.append(weight)
        trimmed = torch.stack(tasks)
        agree = (trimmed.sign() == trimmed.sum(dim=0).sign()) & (trimmed != 0)
        total = (trimmed * agree).sum(dim=0)
        if combination.summed:
            return total
        share = torch.tensor(weights, dtype=torch.float64).view(-1, *[1] * (trimmed.dim() - 1))
        return total / (share * agree).sum(dim=0).clamp_min(min(weights))

    yield from on_base(combination, elected)


def _least_kept(combination: Combination, density: float) -> list[float]:
    """Return, for each member, the smallest magnitude among the entries of its task vector that stay.

    Magnitudes are ordered as the integers that their bits are; each pass counts sixteen more of those bits among the
    entries that agree so far.
    """
    count = len(combination.members)
    prefix, entries = [0] * count, [0] * count
    rank: list[int] = [0] * count
    for step in range(_PASSES):
        shift = _BITS * (_PASSES - 1 - step)
        histograms = torch.zeros((count, 1 << _BITS), dtype=torch.int64)
        for rows in aligned(combination):
            if rows.base is None:
                continue
            for member, (task, _) in enumerate(task_vectors(rows, combination)):
                bits = task.abs_().flatten().view(torch.int64)
                same = bits if step == 0 else bits[bits >> (shift + _BITS) == prefix[member]]
                digits = (same >> shift) & ((1 << _BITS) - 1)
                histograms[member] += torch.bincount(digits, minlength=1 << _BITS)
                entries[member] += len(bits) if step == 0 else 0
        for member in range(count):
            if step == 0:
                rank[member] = max(1, round(density * entries[member]))  # so many from the top stay
            above = histograms[member].flip(0).cumsum(0)
            place = int((above < rank[member]).sum())
            digit = (1 << _BITS) - 1 - place
            rank[member] -= int(above[place - 1]) if place else 0
            prefix[member] = prefix[member] << _BITS | max(digit, 0)
    return [float(torch.tensor(bits, dtype=torch.int64).view(torch.float64)) for bits in prefix]
