"""Estimates of the memory that passes of kept tokens take, and the rendering of a tensor."""

import math

from registry.composition.plan import Plan
from registry.hosts import Trunk
from registry.hosts.tensors import Evidence, EvidenceEmbedding, HeadMap, Made, OwnHeadMap, Widened
from registry.methods.moe.output import retakes
from store.arrays import CARRIERS, CHUNK_ELEMENTS


def peak_bytes(plan: Plan) -> int:
    """Return an upper estimate of the memory that composing on one thread takes beyond the program itself.

    Each further thread takes `rendering_bytes` more, as far as half of the free memory allows. Where tokens run through
    models, the largest of these is in memory too, with the statistics that it gives.
    """
    return rendering_bytes(plan) + (_retaken_bytes(plan) if retakes(plan.recipe) else 0)


def rendering_bytes(plan: Plan) -> int:
    """Return an upper estimate of the memory that one thread takes to compute tensors.

    One layer's Gram workspace (five matrices of 8-byte numbers: a member's triangle as read and as decoded, the sum,
    its factor, and room of the solution) and one block of a tensor (in float64, widened and rounded, with what each
    member contributes, as read and as decoded). Both count: what one frees is not always there for the other.
    """
    architecture = plan.parts.architecture
    widest: int = architecture.hidden_size
    if plan.recipe.trunk_method is not None and plan.recipe.trunk_method.needs_inputs:
        widest = max(widest, architecture.num_attention_heads * architecture.head_dim)
    gram = 5 * 8 * (widest + 1) ** 2
    elements = max(rendered_elements(tensor.made) for tensor in plan.tensors)
    contributed = 2 * CARRIERS[plan.dtype][1] * (len(plan.members) + (plan.base is not None))
    return gram + (3 * 8 + contributed) * elements


def _retaken_bytes(plan: Plan) -> int:
    """Return the bytes of the largest model that tokens run through whole, and of the sums that are taken there."""
    architecture = plan.lead.architecture
    dense = sum(link.nbytes for link in plan.lead.arrays if link.role in ("trunk", "mlp"))
    sums = 2 * 8 * architecture.num_hidden_layers * (architecture.hidden_size + 1) ** 2
    return sums + (plan.nbytes if plan.recipe.refine > 1 else dense)


def rendered_elements(made: Made) -> int:
    """Return how many elements of a tensor are in memory at once."""
    size = math.prod(made.shape)
    if isinstance(made, Evidence):
        return size
    if isinstance(made, HeadMap):  # sums, their factors and an eigendecomposition
        return 8 * made.hidden_size**2 + min(CHUNK_ELEMENTS, size)
    if isinstance(made, OwnHeadMap):  # sums, their factors and their solution
        return 8 * made.shape[0] ** 2
    if isinstance(made, Widened | EvidenceEmbedding):
        return min(size, 2 * rendered_elements(made.inner))
    reordered = isinstance(made, Trunk) and made.rows.rows is not None and not isinstance(made.rows.rows, range)
    return size if reordered else min(CHUNK_ELEMENTS, size)
