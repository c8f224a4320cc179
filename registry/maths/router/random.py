"""Random rows: the router of BTX before it is trained, and the one that any other must beat."""

import hashlib
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from registry.maths.router.solve import as_gate


def random(
    digests: Sequence[str], hidden_size: int, layer: int, seed: int = 0, normalize: bool = True
) -> Float[Tensor, "E H"]:
    """Return gate.weight of one layer, float64: row e is normal, of expected squared length 1.

    A row is a function of (seed, layer, the member's digest) alone, through SHA-256: it does not depend on who else is
    there, nor on the order. Members of one digest have one row.

    Args:
        digests: one a member; copies of one version have different ones (`Member.row_key`).
        hidden_size: H ≥ 1.
        layer: number of the layer.
        seed: another seed, other rows.
        normalize: rows at unit length exactly.

    Raises:
        ValueError: there is no expert.
    """
    if not digests:
        raise ValueError("a router needs at least one expert")
    rows = [_row(f"router {seed} {layer} {digest}", hidden_size) for digest in digests]
    return as_gate(torch.stack(rows, dim=1) / hidden_size**0.5, normalize)


def _row(key: str, hidden_size: int) -> Float[Tensor, "H"]:
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")  # the generator takes 32 bits
    draw = torch.Generator().manual_seed(number)
    return torch.empty(hidden_size, dtype=torch.float64).normal_(generator=draw)
