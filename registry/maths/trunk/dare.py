"""DARE: task vectors with entries dropped at random and the rest rescaled (Yu et al. 2024, §3.2; MergeME §3.1.2)."""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from registry.maths.trunk.combination import Combination, RowBlock
from registry.maths.trunk.task_arithmetic import on_base, task_vectors

_LEVELS = 2**32


def combine(combination: Combination) -> Iterator[Tensor]:
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
