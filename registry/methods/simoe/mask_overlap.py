"""Overlap of the masks of experts of a SIMoE."""

from collections.abc import Sequence
from itertools import combinations

import torch

from registry.checkpoint.trained_files import MASK
from registry.io.torch_blocks import to_tensor
from registry.maths.interpolation import overlap_matrix, unpack_bits
from registry.member import Member


def mask_overlaps(members: Sequence[Member]) -> tuple[tuple[str, str, float], ...]:
    """Return (name, name, overlap of the masks, from 0 to 1) of every two members of one SIMoE; of others
    nothing.

    Raises:
        DamagedError: a mask is not what was stored.
    """
    if not all("simoe" in (member.version.content or {}) for member in members):
        return ()
    masks = torch.stack([_mask(member) for member in members]).float()
    found = overlap_matrix(masks)
    pairs = combinations(range(len(members)), 2)
    return tuple((members[one].name, members[other].name, float(found[one, other])) for one, other in pairs)


def _mask(member: Member) -> torch.Tensor:
    """Return a member's mask; the last bits, of no output, are 0."""
    packed = torch.cat([to_tensor(block, "uint8") for block in member.open("simoe", MASK).blocks()])
    return unpack_bits(packed, 8 * len(packed))
