"""The members' evidence of tokens, and the experts that it chooses for a text."""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from registry.calibration import Calibration
from registry.composition.plan import Plan, context_windows
from registry.composition.tensor_source import TensorSource
from registry.errors import InvalidInputError
from registry.hosts.context import ALARM
from registry.hosts.remote_code import REMOTE_CODE
from registry.maths.context.evidence import thresholds, token_evidence, token_shares
from registry.maths.context.prefix import FAST, context_scores, prefix_means
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


def thresholds_of(plan: Plan) -> Float[Tensor, "E"]:
    """Return the evidence of the last few tokens above which each member is taken at once, float64."""
    rows = plan.lead.architecture.vocab_size
    shares = token_shares([member.token_counts for member in plan.members])[:rows]
    return thresholds(shares, evidence_of(plan)[: len(shares)], FAST)


def choices_of(plan: Plan, calibration: Calibration, evidence: Float[Tensor, "V E"]) -> Int64[Tensor, "N S"]:
    """Return the expert that each calibration token is routed to by its context: the same in every layer.

    Args:
        plan: a composition whose router is `context`.
        calibration: the texts; padding counts as no evidence.
        evidence: `evidence_of(plan)`.
    """
    slow, fast = past_weights(plan, calibration.ids.shape[1])
    means = [
        None if weights is None else prefix_means(calibration.ids.long(), calibration.keep, evidence, weights)
        for weights in (slow, fast)
    ]
    assert means[0] is not None
    return context_scores(means[0], means[1], thresholds_of(plan), ALARM).argmax(dim=-1)


def past_weights(plan: Plan, length: int) -> tuple[Float[Tensor, "S"], Float[Tensor, "S"] | None]:
    """Return w(Δ) for Δ = 0 … length − 1: how the context layer weighs the past, slow and, where it has one, fast."""
    if plan.recipe.host == REMOTE_CODE:
        past, tau = torch.arange(length, dtype=torch.float64), plan.recipe.context_window
        if not tau:
            return torch.ones(length, dtype=torch.float64), None
        return torch.exp(-past / tau), torch.exp(-past / FAST) if tau > FAST else None
    translation = plan.lead.hosts[plan.recipe.host or next(iter(plan.lead.hosts))]
    windows, _ = context_windows(translation, plan.recipe.context_window)
    sizes = translation.architecture
    if not windows.slow:
        return torch.ones(length, dtype=torch.float64), None
    rotary = rotary_tables(sizes.rope_parameters, sizes.head_dim, sizes.max_position_embeddings)
    slow, fast = (
        recency_weights(rotary, torch.tensor(amplitudes, dtype=torch.float64), length) if amplitudes else None
        for amplitudes in (windows.slow, windows.fast)
    )
    assert slow is not None
    return slow, fast


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
