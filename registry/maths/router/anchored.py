"""Rows that experts were trained with, beside one public expert (FlexOlmo, Shi et al. 2025, §3.3.1)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def anchored(rows: Sequence[Float[Tensor, "H"]]) -> Float[Tensor, "E H"]:
    """Return gate.weight of one layer, float64: the members' rows as they were trained.

    Each was trained in a mixture of the public expert and its own alone, whose logits were 0 and r·x. Rows of different
    experts can stand beside one another because all have the same anchor: the logit of the public expert.

    Args:
        rows: one a member, in name order; zeros for the public expert.

    Raises:
        ValueError: there is no expert.
    """
    if not rows:
        raise ValueError("a router needs at least one expert")
    return torch.stack([row.double() for row in rows])
