"""Windows of random tokens for passes over tiny models."""

from collections.abc import Sequence

import torch

from registry.calibration import Calibration


def windows(count: int, length: int = 16, seed: int = 0, lengths: Sequence[int] | None = None) -> Calibration:
    """Return windows of tokens that all tiny models know, whole or of some lengths."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 320, (count, length), generator=draw, dtype=torch.int32)
    return Calibration(ids, torch.tensor(lengths or [length] * count, dtype=torch.int32), "random")


UNEVEN = windows(7, lengths=(16, 5, 16, 16, 1, 9, 16))
"""Windows of different lengths, which do not fill the last of several batches."""
