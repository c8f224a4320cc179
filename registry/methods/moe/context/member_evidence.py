"""The members' evidence of tokens, and the experts that it chooses for a text."""

import math

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from registry.calibration import Calibration
from registry.composition.plan import Plan
from registry.composition.taken_files import special_tokens
from registry.errors import InvalidInputError
from registry.hosts.context import attention_reach
from registry.hosts.context_mlp import ALARM, compares
from registry.hosts.remote_code import REMOTE_CODE
from registry.maths.context.evidence import thresholds, token_evidence, token_shares
from registry.maths.context.prefix import FAST, context_scores, prefix_means
from registry.maths.context.rotary import recency_weights, rotary_tables
from registry.methods.moe.context.head_maps import SharedTensors
from registry.methods.moe.plan import context_windows
from registry.methods.moe.refinement import SOLVES_AGAIN

NEUTRAL = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Keys of special tokens, which are no evidence: how often they stand depends on the length of documents."""


def evidence_of(plan: Plan) -> Float[Tensor, "V E"]:
    """Return each token's evidence of the members of a plan, float64, one row a token of the lead's vocabulary.

    Raises:
        DamagedError: stored counts are damaged.
        InvalidInputError: a member counted no token.
    """
    counts = [member.evidence_counts for member in plan.members]
    for member, own in zip(plan.members, counts, strict=True):
        if int(own.min()) < 0 or int(own.sum()) < 1:
            raise InvalidInputError(
                f"{member.version.ref} counted no token, and --router context knows members by their tokens",
                f"register it again with text: reg add-expert {member.name} CKPT --data FILE; or choose --router "
                f"{SOLVES_AGAIN}",
            )
    rows = plan.lead.architecture.vocab_size
    evidence = token_evidence(counts, neutral_tokens(plan))[:rows]
    return torch.cat([evidence, evidence.new_zeros((rows - len(evidence), len(counts)))])


def thresholds_of(plan: Plan) -> Float[Tensor, "E E"]:
    """Return the evidence of the last few tokens that is no chance, float64 (`registry.maths.context.evidence`).

    Thresholds outside the diagonal are infinite where the host has no room to compare pairs of experts.
    """
    rows = plan.lead.architecture.vocab_size
    shares = token_shares([member.evidence_counts for member in plan.members])[:rows]
    limits = thresholds(shares, evidence_of(plan)[: len(shares)], FAST)
    if plan.recipe.host == REMOTE_CODE or compares(plan.lead.architecture, len(limits)):
        return limits
    return torch.full_like(limits, torch.inf).diagonal_scatter(limits.diagonal())


def choices_of(plan: Plan, calibration: Calibration, evidence: Float[Tensor, "V E"]) -> Int64[Tensor, "N S"]:
    """Return the expert that each calibration token is routed to by its context: the same in every layer."""
    return scores_of(plan, calibration.ids, calibration.keep, evidence).argmax(dim=-1)


def scores_of(
    plan: Plan, ids: Int[Tensor, "N S"], keep: Bool[Tensor, "N S"], evidence: Float[Tensor, "V E"]
) -> Float[Tensor, "N S E"]:
    """Return what the routers of every layer compare, float64, in nats.

    Args:
        plan: a composition whose router is `context`.
        ids: the texts.
        keep: which tokens count; padding is no evidence.
        evidence: `evidence_of(plan)`.
    """
    slow, fast = past_weights(plan, ids.shape[1])
    means = prefix_means(ids, keep, evidence, slow)
    if fast is None:
        return means
    return context_scores(means, prefix_means(ids, keep, evidence, fast), thresholds_of(plan), ALARM)


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
    rotary = rotary_tables(sizes.rope_parameters, sizes.head_dim, sizes.max_position_embeddings)

    def weights(amplitudes: tuple[float, ...]) -> Float[Tensor, "S"]:
        past = torch.ones(length, dtype=torch.float64)
        if amplitudes:
            past = recency_weights(rotary, torch.tensor(amplitudes, dtype=torch.float64), length)
        past[attention_reach(sizes, length) :] = 0.0
        return past

    return weights(windows.slow), weights(windows.fast) if windows.fast else None


def neutral_tokens(plan: Plan) -> set[int]:
    """Return the tokens that begin, end and pad a text."""
    special = special_tokens(plan.members, plan.lead)
    given = [special.get(key) for key in NEUTRAL]
    return {token for value in given for token in (value if isinstance(value, list) else [value]) if token is not None}


def stream_unit(source: SharedTensors) -> float:
    """Return the size of the embedding's mean row in the residual stream: √(mean square of all entries)."""
    total, count = 0.0, 0
    for rows in source.combined(source.plan.lead.family.embedding):
        total += float(rows.double().square().sum())
        count += rows.numel()
    multiplier = float(source.plan.parts.architecture.options.get("embedding_multiplier", 1.0))
    return multiplier * math.sqrt(total / max(count, 1))
