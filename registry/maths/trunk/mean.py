"""The average of the members' trunks (BTX §3.2; DUME §3.1)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def mean(members: Sequence[Float[Tensor, "..."]], base: Tensor | None = None) -> Float[Tensor, "..."]:
    """Return (1/E) Σ_e members_e in float64, summed in the order given. A single member is returned exactly."""
    total = members[0].to(torch.float64, copy=True)
    for member in members[1:]:
        total.add_(member)  # the narrower tensor is widened exactly, element by element
    return total.div_(len(members))
