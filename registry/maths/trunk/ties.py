"""TIES: task vectors trimmed, a sign elected, those that agree averaged (Yadav et al. 2023, §3) or added up.

The sum is that of MergeME, Zhou et al. 2025, §3.1.2.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from registry.maths.trunk.combination import Combination, RowBlock, aligned
from registry.maths.trunk.task_arithmetic import on_base, task_vectors

_BITS = 16
_PASSES = 4
"""Four passes of sixteen bits distinguish a float64 from its neighbours."""


def combine(combination: Combination) -> Iterator[Tensor]:
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
