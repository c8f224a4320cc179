"""Rows that experts are trained with, beside one public expert (FlexOlmo, Shi et al. 2025, §3.3.1)."""

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


def initial_row(mean: Float[Tensor, "H"], public: Float[Tensor, "H"]) -> Float[Tensor, "H"]:
    """Return the row that an expert's training begins with in one layer, float64: r = μ/‖μ‖ − μ_pub/‖μ_pub‖.

    FlexOlmo begins r_i as the embedding of domain i's text and r_pub as that of public text (§3.3.2). Here the
    embedding is the mean MLP input of the layer in the base model, and the row is the difference, because the public
    logit is 0.

    Args:
        mean: mean MLP input over the expert's text.
        public: mean MLP input over public text.

    Raises:
        ValueError: a mean is zero, NaN or infinite.
    """
    rows = torch.stack([mean.double(), public.double()])  # (2, H)
    lengths = rows.norm(dim=1, keepdim=True)  # (2, 1)
    if not bool(torch.isfinite(lengths).all() and (lengths > 0).all()):
        raise ValueError("the mean of a text's MLP inputs is zero or not finite")
    row: Tensor = torch.sub(*(rows / lengths))
    return row
