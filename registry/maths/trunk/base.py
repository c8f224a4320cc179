"""The base model's trunk, unchanged."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor


def base(members: Sequence[Tensor], base: Float[Tensor, "..."] | None) -> Float[Tensor, "..."]:
    """Return the base model's tensor, exactly.

    Raises:
        ValueError: there is no base model.
    """
    if base is None:
        raise ValueError("trunk 'base' needs the base model")
    return base
