"""Estimates of the memory that passes and refits of kept tokens take, and the rendering of a tensor.

Shapes: E members, L layers, H hidden size, F intermediate size of the MLP, A width of attention's output before its
projection; T tokens of a batch, in windows of S.
"""

import math

from registry.composition.method import OWN
from registry.composition.plan import Plan
from registry.hosts import Trunk
from registry.hosts.tensors import Evidence, EvidenceEmbedding, HeadMap, Made, OwnHeadMap, Widened
from registry.methods.moe.output import retakes, router_of
from registry.methods.moe.refit.texts import BATCH_TOKENS
from store.arrays import CARRIERS, CHUNK_ELEMENTS

LIBRARIES = 1 << 26
"""Room that libraries take for compiled kernels and buffers."""


def peak_bytes(plan: Plan) -> int:
    """Return an upper estimate of the memory that composing on one thread takes beyond the program itself.

    Each further thread takes `rendering_bytes` more, as far as half of the free memory allows. Where tokens run through
    models, the largest of these is in memory too, with the statistics that it gives; of a refit one layer, one batch of
    tokens and the sums of one step are.
    """
    recipe = plan.recipe
    refitted = _refit_bytes(plan) if recipe.refine_mlp else 0
    retaken = _retaken_bytes(plan) if retakes(recipe) else 0
    return rendering_bytes(plan) + max(refitted, retaken)


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


def _refit_bytes(plan: Plan) -> int:
    """Return an upper estimate of the bytes of a refit: one layer, one batch of tokens, and the sums of one step.

    Nothing of it grows with the layers, the vocabulary or the number of tokens.
    """
    members, lead, architecture = plan.members, plan.lead, plan.lead.architecture
    size, inner = architecture.hidden_size, architecture.intermediate_size
    heads = architecture.num_attention_heads
    window = max(member.link("calibration", "ids").shape[1] for member in members)
    # Of a layer of the composed model and of the same layer of an expert, in float32.
    first = f"{lead.family.layers}.0."
    layer = sum(math.prod(link.shape) for link in lead.arrays if link.name.startswith(first))
    # Within a layer: the MLP's gate, up and down inputs, the stream and its copies, and the scores of attention.
    tokens = max(BATCH_TOKENS, window)
    activations = 4 * tokens * (4 * inner + 8 * max(size, heads * architecture.head_dim) + heads * window)
    # G and its factor, B and the right and left sides of the solution, in float64.
    inputs = max(inner, heads * architecture.head_dim)
    solved = 8 * (2 * inputs**2 + 4 * inputs * size)
    # Sums of each member: int64, and int32 by limbs.
    routers = 32 * len(members) * (size + 1) ** 2 if router_of(plan.recipe).statistics == OWN else 0
    head = 2 * 8 * len(members) * size**2  # G and B of each member
    return LIBRARIES + 2 * 4 * layer + activations + max(solved, routers, head)


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
