"""The members' evidence of tokens, and the experts that it chooses for a text."""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from registry.calibration import Calibration
from registry.composition.plan import Plan, context_windows
from registry.composition.tensor_source import TensorSource
from registry.errors import InvalidInputError
from registry.hosts.remote_code import REMOTE_CODE
from registry.maths.context.evidence import token_evidence
from registry.maths.context.prefix import prefix_means
from registry.maths.context.rotary import recency_weights, rotary_tables

NEUTRAL = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Keys of special tokens, which are no evidence: how often they stand depends on the length of documents."""


def evidence_of(plan: Plan) -> Float[Tensor, "V E"]:
    """Return each token's evidence of the members of a plan, float64, one row a token of the lead's vocabulary.

    Raises:
        DamagedError: stored counts are damaged.
        InvalidInputError: a member counted no token.
    """
    counts = [member.token_counts for member in plan.members]
    for member, own in zip(plan.members, counts, strict=True):
        if int(own.min()) < 0 or int(own.sum()) < 1:
            raise InvalidInputError(
                f"{member.version.ref} counted no token, and --router context knows members by their tokens",
                f"register it again with text: reg add-expert {member.name} CKPT --data FILE, or choose --router ridge",
            )
    rows = plan.lead.architecture.vocab_size
    evidence = token_evidence(counts, neutral_tokens(plan))[:rows]
    return torch.cat([evidence, evidence.new_zeros((rows - len(evidence), len(counts)))])


def choices_of(plan: Plan, calibration: Calibration) -> Int64[Tensor, "N S"]:
    """Return the expert that each calibration token is routed to by its context: the same in every layer.

    Args:
        plan: a composition whose router is `context`.
        calibration: the texts; padding counts as no evidence.
    """
    ids = calibration.ids.long()
    means = prefix_means(ids, calibration.keep, evidence_of(plan), past_weights(plan, ids.shape[1]))
    return means.argmax(dim=-1)


def past_weights(plan: Plan, length: int) -> Float[Tensor, "S"]:
    """Return w(Δ) for Δ = 0 … length − 1: how the context layer, or the modelling file, weighs the past."""
    tau = plan.recipe.context_window
    if plan.recipe.host == REMOTE_CODE:
        return torch.exp(-torch.arange(length, dtype=torch.float64) / tau) if tau else torch.ones(length).double()
    translation = plan.lead.hosts[plan.recipe.host or next(iter(plan.lead.hosts))]
    windows, _, _ = context_windows(translation, tau)
    if not windows[0].amplitudes:
        return torch.ones(length, dtype=torch.float64)
    sizes = translation.architecture
    rotary = rotary_tables(sizes.rope_parameters, sizes.head_dim, sizes.max_position_embeddings)
    return recency_weights(rotary, torch.tensor(windows[0].amplitudes, dtype=torch.float64), length)


def neutral_tokens(plan: Plan) -> set[int]:
    """Return the tokens that begin, end and pad a text."""
    special = plan.lead.content["special_tokens"]
    given = [special.get(key) for key in NEUTRAL]
    return {token for value in given for token in (value if isinstance(value, list) else [value]) if token is not None}


def stream_unit(source: TensorSource) -> float:
    """Return the size of the embedding's mean row in the residual stream: √(mean square of all entries)."""
    total, count = 0.0, 0
    for rows in source.combined(source.plan.lead.family.embedding):
        total += float(rows.double().square().sum())
        count += rows.numel()
    multiplier = float(source.plan.translation.architecture.options.get("embedding_multiplier", 1.0))
    return multiplier * math.sqrt(total / max(count, 1))
