"""Calibration tokens: windows of equal size, each with the length that counts.

Shapes: N windows, S tokens of a window, V vocabulary.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int32, Int64
from torch import Tensor

from registry.errors import CalibrationError
from registry.progress import Advance, Progress

_BLOCK = 4096  # windows

LEAST_PAIRS = 2
"""Occurrences of a pair of tokens, at least, that is counted: one that occurs once says little of an expert."""


@dataclass(frozen=True)
class Calibration:
    """Windows of tokens.

    Attributes:
        lengths: tokens that count in each window, from 1 to S. Padding is on the right, where a causal model's earlier
            tokens cannot see it.
        written: where a chat template made some of the text, the tokens of what people wrote: the contents of messages.
            They alone are evidence of an expert, as the template is the same for all. None where all text is written.
        documents: where `written` is there, the share of the text's characters that are of no conversation.
        wider: more windows of the same text, whose tokens are counted as evidence and read by no model; None without.
    """

    ids: Int32[Tensor, "N S"]  # token ids; beyond a window's length they are padding of any value
    lengths: Int32[Tensor, "N"]
    label: str  # name for people: file names, or that the expert sampled it
    written: Bool[Tensor, "N S"] | None = None
    documents: float = 0.0
    wider: "Calibration | None" = None

    @property
    def tokens(self) -> int:
        """Tokens that count."""
        return int(self.lengths.sum())

    @property
    def keep(self) -> Bool[Tensor, "N S"]:
        """True where a token counts."""
        return torch.arange(self.ids.shape[1])[None, :] < self.lengths[:, None]

    def counts(self, vocabulary: int, among: Bool[Tensor, "N S"] | None = None) -> Int64[Tensor, "V"]:
        """Return how often each of V tokens occurs among those that count, or those of them where `among` is true."""
        counts = torch.zeros(vocabulary, dtype=torch.int64)
        for first, (ids, keep) in zip(range(0, len(self.ids), _BLOCK), self._blocks(), strict=True):
            chosen = keep if among is None else keep & among[first : first + _BLOCK]
            counts += torch.bincount(ids[chosen].long(), minlength=vocabulary)
        return counts

    def pairs(self, vocabulary: int, among: Bool[Tensor, "N S"] | None = None) -> Int32[Tensor, "P 3"]:
        """Return the pairs of tokens, one after the other in a window, that occur at least `LEAST_PAIRS` times.

        A row is the first token, the second, and how often they occur, in the order of tokens. Both of V tokens count,
        and `among` is true of both.
        """
        keys, counts = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
        for first, (ids, keep) in zip(range(0, len(self.ids), _BLOCK), self._blocks(), strict=True):
            chosen = keep if among is None else keep & among[first : first + _BLOCK]
            new = (ids[:, :-1].long() * vocabulary + ids[:, 1:])[chosen[:, :-1] & chosen[:, 1:]]
            keys, places = torch.cat([keys, new]).unique(return_inverse=True)
            added = torch.cat([counts, torch.ones_like(new)])
            counts = torch.zeros_like(keys).index_add_(0, places, added)
        often = counts >= LEAST_PAIRS
        keys, counts = keys[often], counts[often].clamp(max=torch.iinfo(torch.int32).max)
        return torch.stack([keys // vocabulary, keys % vocabulary, counts], dim=1).int()

    @property
    def digest(self) -> str:
        """SHA-256 over the tokens that count, window by window; neither label nor `written` is part of it."""
        state = hashlib.sha256(f"calibration {list(self.ids.shape)}\n".encode())
        state.update(self.lengths.contiguous().numpy().data)
        for ids, keep in self._blocks():
            state.update(ids.masked_fill(~keep, 0).contiguous().numpy().data)
        return state.hexdigest()

    def _blocks(self) -> Iterator[tuple[Int32[Tensor, "n S"], Bool[Tensor, "n S"]]]:
        """Yield the windows, and where their tokens count, in blocks, which bounds the memory of copies."""
        for first in range(0, len(self.ids), _BLOCK):
            ids, lengths = self.ids[first : first + _BLOCK], self.lengths[first : first + _BLOCK]
            yield ids, Calibration(ids, lengths, self.label).keep


SEED = 0
_ATTEMPTS = 64
_OWN = "sampled by the expert itself"


def self_sampled_label(tokens: int, seq_len: int) -> str:
    """Return the label of self-sampled text: its settings, which with the weights determine it."""
    return f"{_OWN} ({tokens} tokens, windows of {seq_len}, temperature 1, seed {SEED})"


def is_self_sampled(label: str) -> bool:
    """Tell whether a label is that of self-sampled text, which reveals no more than the weights."""
    return label.startswith(f"{_OWN} (")


@torch.no_grad()
def sample_from_expert(
    model: Any,
    special_tokens: Mapping[str, Any],
    *,
    start: int | None = None,
    tokens: int,
    seq_len: int,
    batch_size: int,
    progress: Progress,
) -> Calibration:
    """Sample windows of up to `seq_len` tokens from `model`, a causal language model, `tokens` tokens in all.

    A window begins with the start token, and ends early if the model ends its text, by an end token, which counts. Both
    are those of a configuration, unless the model has none of that number; without a start token, `start` or an end
    token begins windows. `batch_size` windows are sampled at a time (CalibrationError: no start token, or texts that
    end too soon).
    """
    known, named = range(model.get_input_embeddings().num_embeddings), special_tokens["eos_token_id"]
    end = [one for one in (named if isinstance(named, list) else [named]) if type(one) is int and one in known]
    first = (special_tokens["bos_token_id"], start, *end)
    start = next((one for one in first if type(one) is int and one in known), None)
    if start is None:
        raise CalibrationError(
            "the checkpoint has neither a start nor an end token, so the expert cannot write calibration text itself",
            "give --data FILE",
        )
    from transformers import GenerationConfig

    # Replaces the checkpoint's own settings, which may penalise or truncate text.
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=seq_len - 1,
        eos_token_id=end or None,
        pad_token_id=start,
        bos_token_id=start,
    )
    prompt = torch.full((batch_size, 1), start, device=model.device)
    windows: list[torch.Tensor] = []
    sampled = 0
    with torch.random.fork_rng(enabled=True), progress("sampling", tokens, "token") as advance:
        torch.manual_seed(SEED)
        for _ in range(_ATTEMPTS * max(1, -(-tokens // (batch_size * seq_len)))):
            counter = _Counter(end, tokens - sampled, advance)
            rows = model.generate(prompt, attention_mask=torch.ones_like(prompt), streamer=counter).cpu()
            for row in rows.to(torch.int32):
                ends = torch.isin(row[1:], torch.tensor(end, dtype=row.dtype)).nonzero()
                window = row[: int(ends[0]) + 2] if len(ends) else row  # up to the first end token, which counts too
                if len(window) > 1 and sampled < tokens:
                    windows.append(window[: tokens - sampled])
                    sampled += len(windows[-1])
            if sampled >= tokens:
                break
    if sampled < tokens:
        raise CalibrationError(
            f"the expert ended its texts after {sampled:,} of {tokens:,} tokens",
            "give --data FILE, or a smaller --tokens",
        )
    ids = torch.full((len(windows), seq_len), start, dtype=torch.int32)
    for index, window in enumerate(windows):
        ids[index, : len(window)] = window
    lengths = torch.tensor([len(window) for window in windows], dtype=torch.int32)
    return Calibration(ids, lengths, self_sampled_label(tokens, seq_len))


@dataclass(frozen=True)
class Turns:
    """The tokens that a chat template puts around messages.

    Attributes:
        before: what precedes the first message, a user's, not empty.
        between: what stands between it and the answer, not empty; its first token ends the message.
        after: what stands between an answer and the next message; empty in a template that takes no second question.
        special: the tokenizer's special tokens, of which texts that people write have none.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...] = ()
    special: frozenset[int] = frozenset()

    @classmethod
    def of(cls, tokenizer: Any) -> "Turns | None":
        """Return the turns of a tokenizer's chat template; None if it has none, or one that is not of this form."""
        if not getattr(tokenizer, "chat_template", None):
            return None
        day = {"strftime_now": lambda form: "01 Jan 2025"}  # some ask for today's, which is another tomorrow

        def around(*roles: str) -> list[tuple[int, ...]]:
            messages = [{"role": role, "content": _MARK} for role in roles]
            try:
                text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **day))
            except Exception:  # templates are code of others
                return []
            return [tuple(tokenizer(part, add_special_tokens=False)["input_ids"]) for part in text.split(_MARK)]

        parts, more = around("user"), around("user", "assistant", "user")
        if len(parts) != 2 or not all(parts):
            return None
        after = more[2] if len(more) == 4 else ()
        special = {number for number, token in getattr(tokenizer, "added_tokens_decoder", {}).items() if token.special}
        return cls(parts[0], parts[1], after, frozenset(special))

    @property
    def tokens(self) -> frozenset[int]:
        """All that the template puts around messages, but special tokens."""
        return frozenset({*self.before, *self.between, *self.after} - self.special)


_MARK = "expert-registry-user-message"


@torch.no_grad()
def sample_conversations(
    model: Any, turns: Turns, end: Sequence[int], *, tokens: int, seq_len: int, batch_size: int, progress: Progress
) -> Calibration:
    """Sample conversations of a user's message and an answer, both by `model`: what it was trained to talk about.

    The user turn's beginning is the prompt (Magpie, Xu et al. 2024, section 2). Messages have up to half a
    window; `end` are the tokens that end an answer. Windows have `tokens` tokens in all, of which only messages are
    `written` (CalibrationError: the model writes nothing).
    """
    from transformers import GenerationConfig

    stop = sorted({*end, turns.between[0]})
    room = (seq_len - len(turns.before) - len(turns.between)) // 2
    if room < 2:
        raise CalibrationError(
            f"a conversation needs {len(turns.before) + len(turns.between) + 4} tokens, a window has {seq_len}",
            "register it without --own-text",
        )

    def written(prompts: Sequence[list[int]]) -> list[list[int]]:
        """Return what the model goes on with after each prompt, up to what ends it."""
        width = max(map(len, prompts))
        ids = torch.tensor([[stop[0]] * (width - len(one)) + one for one in prompts], device=model.device)
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts], device=model.device)
        rows = model.generate(ids, attention_mask=mask).cpu()[:, width:].tolist()
        return [row[: next((at for at, one in enumerate(row) if one in stop), len(row))] for row in rows]

    windows: list[tuple[list[int], list[bool]]] = []
    sampled = 0
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=room,
        eos_token_id=stop,
        pad_token_id=stop[0],
    )
    before, between = list(turns.before), list(turns.between)
    with torch.random.fork_rng(enabled=True), progress("sampling", tokens, "token") as advance:
        torch.manual_seed(SEED)
        for _ in range(_ATTEMPTS * max(1, -(-tokens // (batch_size * seq_len)))):
            messages = [one for one in written([before] * batch_size) if one]
            answers = written([[*before, *message, *between] for message in messages]) if messages else []
            for message, answer in zip(messages, answers, strict=True):
                if sampled >= tokens or not answer:
                    continue
                ids = [*before, *message, *between, *answer]
                own = [False] * len(before) + [True] * len(message) + [False] * len(between) + [True] * len(answer)
                windows.append((ids[: tokens - sampled], own[: tokens - sampled]))
                advance(len(windows[-1][0]))
                sampled += len(windows[-1][0])
            if sampled >= tokens:
                break
    if sampled < tokens:
        raise CalibrationError(f"the model wrote {sampled:,} of {tokens:,} tokens", "give a smaller --own-text")
    filled = torch.full((len(windows), seq_len), stop[0], dtype=torch.int32)
    marks = torch.zeros((len(windows), seq_len), dtype=torch.bool)
    for index, (ids, own) in enumerate(windows):
        filled[index, : len(ids)], marks[index, : len(own)] = torch.tensor(ids), torch.tensor(own)
    lengths = torch.tensor([len(ids) for ids, _ in windows], dtype=torch.int32)
    label = f"{_OWN} ({tokens} tokens of conversations, windows of {seq_len}, temperature 1, seed {SEED})"
    return Calibration(filled, lengths, label, marks)


class _Counter:
    """A streamer for `generate`: each step's tokens, one a row, advance the bar by those that count."""

    def __init__(self, end: list[int], wanted: int, advance: Advance) -> None:
        self._end, self._wanted, self._advance = torch.tensor(end, dtype=torch.long), wanted, advance
        self._open: torch.Tensor | None = None

    def put(self, tokens: torch.Tensor) -> None:
        """Count the prompts, and on later calls a token of every row that has not ended yet."""
        if self._open is None:
            self._open = torch.ones(len(tokens), dtype=torch.bool)
            counted = tokens.numel()
        else:
            counted = int(self._open.sum())
            self._open &= ~torch.isin(tokens, self._end)
        counted = min(counted, self._wanted)
        self._wanted -= counted
        self._advance(counted)

    def end(self) -> None:
        """Do nothing: the bar is complete."""
