"""Context routing: the members' evidence of tokens, the experts that it chooses for a text, and their head maps."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import local
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Int16, Int64
from torch import Tensor

from registry.calibration.calibration import Turns
from registry.composition.plan import Plan
from registry.composition.stored import in_file, pass_over
from registry.composition.taken_files import chat_template, special_tokens, taken_files
from registry.errors import CheckpointError, InvalidInputError
from registry.hosts.context import attention_reach
from registry.hosts.context_mlp import ALARM, compares
from registry.hosts.remote_code import REMOTE_CODE
from registry.io.model_folder import json_file
from registry.io.process import return_freed_memory
from registry.maths.context.evidence import pair_evidence, thresholds, token_evidence, token_shares
from registry.maths.context.head_map import HeadSums
from registry.maths.context.prefix import FAST, context_scores, prefix_means
from registry.maths.context.rotary import recency_weights, rotary_tables
from registry.maths.threads import Once
from registry.member import Member
from registry.methods.moe.options import SOLVES_AGAIN
from registry.methods.moe.plan import context_windows, fast_window
from registry.methods.whole_members import dense_settings
from registry.runtime.loading import load_tokenizer

_ROWS = 1024
"""Rows of the heads that are summed at once."""


@runtime_checkable
class SharedTensors(Protocol):
    """A source of the tensors that all experts share (`tensor_source.py`)."""

    @property
    def plan(self) -> Plan:
        """The composition."""

    def combined(self, name: str) -> Iterator[Float[Tensor, "r ..."]]:
        """Yield the rows of a tensor by its dense name.

        Raises:
            DamagedError: a stored array is damaged.
            InvalidInputError: a linear system cannot be solved.
        """


class HeadMaps:
    """The head map of each expert (`registry.maths.context.head_map`), computed when it is first used.

    Safe for several threads, of which each keeps the map that it used last: tensors of one expert follow one another.
    Where tensors hold the maps of all experts, `keep` has them wait in files.
    """

    def __init__(self, source: SharedTensors) -> None:
        self._source = source
        self._head = source.plan.lead.family.own_head(source.plan.lead.architecture)
        self._last = local()  # key and value
        self._kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._shared_head = Once(self._used_rows)

    def factors(
        self, expert: int, rank: int, *, keep: bool = False
    ) -> tuple[Float[Tensor, "H k"], Float[Tensor, "k H"]]:
        """Return M_e of one expert as two factors, float64; `keep` them where they are asked for again after others."""

        def found() -> tuple[Tensor, Tensor]:
            if (kept := self._kept.get((expert, rank))) is not None:
                return kept
            left, right = self._sums(expert).solve(rank)
            return_freed_memory()
            return self._kept.setdefault((expert, rank), (in_file([left]), in_file([right]))) if keep else (left, right)

        return self._remembered((expert, rank), found)

    def affine(self, expert: int) -> tuple[Float[Tensor, "H H"], Float[Tensor, "H"]]:
        """Return M_e and v_e of one expert, float64; v_e is zero where the last norm has no bias."""
        return self._remembered((expert, None), lambda: self._sums(expert).affine())

    def _remembered(
        self, key: tuple[int, int | None], compute: Callable[[], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        if getattr(self._last, "key", None) != key:
            self._last.key = self._last.value = None  # freed before another is computed
            self._last.value, self._last.key = compute(), key
        value: tuple[Tensor, Tensor] = self._last.value
        return value

    def _sums(self, expert: int) -> HeadSums:
        plan = self._source.plan
        member, norm = plan.members[expert], plan.lead.family.last_norm
        shared_norm, own_norm = (scale + norm.offset for scale in self._vectors(member, f"{norm.norm}.weight"))
        biases = self._vectors(member, f"{norm.norm}.bias") if norm.bias else None
        counts = member.token_counts.double()
        share = counts / counts.sum()
        (shared, numbers), sums, start = self._shared_head(), HeadSums(len(shared_norm)), 0
        for block in pass_over(member, self._head)():  # all are read, which checks their digest
            for mine in block.split(_ROWS):
                part = share[start : start + len(mine)]
                used = part.nonzero()[:, 0]
                theirs = shared[numbers[used + start]]
                start += len(mine)
                if not len(used):
                    continue
                part = part[used]
                heads = theirs.double(), mine[used].double()  # (r, H)
                scaled = heads[0] * shared_norm, heads[1] * own_norm
                if norm.centred:
                    scaled = scaled[0] - scaled[0].mean(1, keepdim=True), scaled[1] - scaled[1].mean(1, keepdim=True)
                sums.add(*scaled, part)
                if biases is not None:
                    sums.add_shift(scaled[0], heads[1] @ biases[1] - heads[0] @ biases[0], part)
        return sums

    def _used_rows(self) -> tuple[Float[Tensor, "n H"], Int64[Tensor, "V"]]:
        """Combine the shared head once; return the rows that members use, float32 in a file, and token → its row."""
        counts = [member.token_counts for member in self._source.plan.members]
        used = torch.zeros(max(map(len, counts)), dtype=torch.bool)
        for each in counts:
            used[: len(each)] |= each > 0

        def blocks() -> Iterator[Tensor]:
            start = 0
            for block in self._source.combined(self._head):
                here = used[start : start + len(block)]
                yield block[: len(here)][here].float()
                start += len(block)

        return in_file(blocks()), used.cumsum(0) - 1

    def _vectors(self, member: Member, name: str) -> tuple[Float[Tensor, "H"], Float[Tensor, "H"]]:
        shared, own = self._source.combined(name), pass_over(member, name)()
        return torch.cat(list(shared)).double(), torch.cat(list(own)).double()


NEUTRAL = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Keys of special tokens, which are no evidence: how often they stand depends on the length of documents."""


def turns_of(plan: Plan) -> Turns | None:
    """Return what a folder's chat template puts around messages.

    None without a template, or with a tokenizer that cannot be loaded here.
    """
    lead = plan.lead
    if chat_template(lead) is None:
        return None
    with TemporaryDirectory() as name, suppress(CheckpointError):
        for file, data in (taken_files((lead,), lead) | {"config.json": json_file(dense_settings(lead))}).items():
            (Path(name) / file).write_bytes(data)
        return Turns.of(load_tokenizer(Path(name)))
    return None


def shares_of(plan: Plan, *, in_place: bool = False) -> Float[Tensor, "V E"]:
    """Return the share of each token in the text that members are known by, float64 (errors as `evidence_of`).

    Members that are known by the contents of messages did not count what a chat template puts around these, such as
    "assistant" and line ends, which every chat has; unless the model tells such tokens from others by their place
    (`in_place`), they have a share of these.
    """
    counts = [member.evidence_counts for member in plan.members]
    for member, own in zip(plan.members, counts, strict=True):
        if int(own.min()) < 0 or int(own.sum()) < 1:
            raise InvalidInputError(
                f"{member.version.ref} counted no token, and --router context knows members by their tokens",
                f"register it again with text: reg add-expert {member.name} CKPT --data FILE; or choose --router "
                f"{SOLVES_AGAIN}",
            )
    chats = [number for number, member in enumerate(plan.members) if member.is_of_contents]
    turns = turns_of(plan) if 0 < len(chats) < len(counts) and not in_place else None
    return token_shares(counts, chats, turns.tokens if turns else ())


def evidence_of(plan: Plan, *, in_place: bool = False) -> Float[Tensor, "V E"]:
    """Return each token's evidence of the members of a plan, float64, one row a token of the lead's vocabulary.

    `in_place` is as of `shares_of`.

    Raises:
        DamagedError: stored counts are damaged.
        InvalidInputError: a member counted no token.
    """
    return _evidence(plan, shares_of(plan, in_place=in_place))


def pairs_of(plan: Plan) -> tuple[Int64[Tensor, "M"], Int16[Tensor, "M"], Float[Tensor, "M"]] | None:
    """Return what pairs of tokens add to `evidence_of` in place (`pair_evidence`); None if a member counted none.

    Errors are those of `evidence_of`.
    """
    counted = [member.pair_counts for member in plan.members]
    pairs = [own for own in counted if own is not None]
    if len(pairs) < len(counted):
        return None
    rows = plan.lead.architecture.vocab_size
    shares = shares_of(plan, in_place=True)[:rows]
    shares = torch.cat([shares, shares.new_zeros((rows - len(shares), len(pairs)))])
    totals = [int(member.evidence_counts.sum()) for member in plan.members]
    return pair_evidence(shares, pairs, totals, _neutral(plan))


def _neutral(plan: Plan) -> set[int]:
    """Return the numbers of the special tokens that are no evidence."""
    special = special_tokens(plan.members, plan.lead)
    values = [special.get(key) for key in NEUTRAL]
    listed = [token for value in values for token in (value if isinstance(value, list) else [value])]
    return {token for token in listed if token is not None}


def _evidence(plan: Plan, shares: Float[Tensor, "V E"]) -> Float[Tensor, "V E"]:
    rows = plan.lead.architecture.vocab_size
    evidence = token_evidence(shares, _neutral(plan))[:rows]
    return torch.cat([evidence, evidence.new_zeros((rows - len(evidence), shares.shape[1]))])


def limits_of(plan: Plan, *, in_place: bool = False) -> Float[Tensor, "E E"]:
    """Return the evidence of the last few tokens that is no chance, float64 (`registry.maths.context.evidence`)."""
    shares = shares_of(plan, in_place=in_place)
    evidence = _evidence(plan, shares)
    rows = min(map(len, (shares, evidence)))
    return thresholds(shares[:rows], evidence[:rows], FAST if in_place else fast_window(plan))


def thresholds_of(plan: Plan) -> Float[Tensor, "E E"]:
    """Return `limits_of` a mixture: infinite outside the diagonal where its host has no room to compare experts."""
    limits = limits_of(plan)
    if plan.recipe.host == REMOTE_CODE or compares(plan.lead.architecture, len(limits)):
        return limits
    return torch.full_like(limits, torch.inf).diagonal_scatter(limits.diagonal())


def scores_of(
    plan: Plan, ids: Int[Tensor, "N S"], keep: Bool[Tensor, "N S"], evidence: Float[Tensor, "V E"]
) -> Float[Tensor, "N S E"]:
    """Return what the routers of every layer compare, float64, in nats; padding (`keep` is False) is no evidence."""
    slow, fast = past_weights(plan, ids.shape[1])
    means = prefix_means(ids, keep, evidence, slow)
    if fast is None:
        return means
    return context_scores(means, prefix_means(ids, keep, evidence, fast), thresholds_of(plan), ALARM)


def past_weights(plan: Plan, length: int) -> tuple[Float[Tensor, "S"], Float[Tensor, "S"] | None]:
    """Return w(Δ) for Δ = 0 … length − 1: how the context layer weighs the past, slow and, where it has one, fast."""
    if plan.recipe.host == REMOTE_CODE:
        past, tau, fast = torch.arange(length, dtype=torch.float64), plan.recipe.context_window, fast_window(plan)
        if not tau:
            return torch.ones(length, dtype=torch.float64), None
        return torch.exp(-past / tau), torch.exp(-past / fast) if tau > fast else None
    translation = plan.lead.hosts[plan.recipe.host or next(iter(plan.lead.hosts))]
    windows, _ = context_windows(plan, translation)
    sizes = translation.architecture
    rotary = rotary_tables(sizes.rope_parameters, sizes.head_dim, sizes.max_position_embeddings)

    def weights(amplitudes: tuple[float, ...]) -> Float[Tensor, "S"]:
        past = torch.ones(length, dtype=torch.float64)
        if amplitudes:
            past = recency_weights(rotary, torch.tensor(amplitudes, dtype=torch.float64), length)
        past[attention_reach(sizes, length) :] = 0.0
        return past

    return weights(windows.slow), weights(windows.fast) if windows.fast else None


def stream_unit(source: SharedTensors) -> float:
    """Return the size of the embedding's mean row in the residual stream: √(mean square of all entries)."""
    total, count = 0.0, 0
    for rows in source.combined(source.plan.lead.family.embedding):
        total += float(rows.double().square().sum())
        count += rows.numel()
    multiplier = float(source.plan.parts.architecture.options.get("embedding_multiplier", 1.0))
    return multiplier * math.sqrt(total / max(count, 1))


class ContextInputs:
    """Inputs of a context layer's tensors, each computed once, when it is first asked for; safe for several threads.

    Attributes:
        head_maps: each expert's own head as a map in front of the shared one.
        evidence: returns each token's evidence of the members, (V, E) (`evidence_of`).
        thresholds: returns the evidence of the last few tokens that is no chance, (E, E) (`thresholds_of`).
        unit: returns the size of the embedding's mean row in the residual stream (`stream_unit`).
    """

    def __init__(self, source: SharedTensors) -> None:
        self.head_maps = HeadMaps(source)
        self.evidence = Once(lambda: evidence_of(source.plan))
        self.thresholds = Once(lambda: thresholds_of(source.plan))
        self.unit = Once(lambda: stream_unit(source))
