"""Calibration tokens: windows of equal size, each with the length that counts.

Shapes: N windows, S tokens of a window, V vocabulary.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int32, Int64
from torch import Tensor

_BLOCK = 4096
"""Windows of a block."""


@dataclass(frozen=True)
class Calibration:
    """Windows of tokens.

    Attributes:
        ids: token ids; beyond a window's length they are padding of any value.
        lengths: tokens that count in each window, from 1 to S. Padding is on the right, where a causal model's earlier
            tokens cannot see it.
        label: name for people: file names, or that the expert sampled it.
        written: where a chat template made some of the text, the tokens of what people wrote: the contents of messages.
            They alone are evidence of an expert, as the template is the same for all. None where all text is written.
    """

    ids: Int32[Tensor, "N S"]
    lengths: Int32[Tensor, "N"]
    label: str
    written: Bool[Tensor, "N S"] | None = None

    @property
    def tokens(self) -> int:
        """Tokens that count."""
        return int(self.lengths.sum())

    @property
    def keep(self) -> Bool[Tensor, "N S"]:
        """True where a token counts."""
        return torch.arange(self.ids.shape[1])[None, :] < self.lengths[:, None]

    def counts(self, vocabulary: int) -> Int64[Tensor, "V"]:
        """Return the occurrences of each token among those that count; `vocabulary` is V, larger than any token."""
        return self._counts(vocabulary, None)

    def content_counts(self, vocabulary: int) -> Int64[Tensor, "V"] | None:
        """Return the occurrences of each token in contents of messages; None where no chat template made the text."""
        return None if self.written is None else self._counts(vocabulary, self.written)

    def _counts(self, vocabulary: int, counted: Bool[Tensor, "N S"] | None) -> Int64[Tensor, "V"]:
        counts = torch.zeros(vocabulary, dtype=torch.int64)
        for first, (ids, keep) in zip(range(0, len(self.ids), _BLOCK), self._blocks(), strict=True):
            chosen = keep if counted is None else keep & counted[first : first + _BLOCK]
            counts += torch.bincount(ids[chosen].long(), minlength=vocabulary)
        return counts

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
