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
    """

    ids: Int32[Tensor, "N S"]
    lengths: Int32[Tensor, "N"]
    label: str

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
        counts = torch.zeros(vocabulary, dtype=torch.int64)
        for ids, keep in self._blocks():
            counts += torch.bincount(ids[keep].long(), minlength=vocabulary)
        return counts

    @property
    def digest(self) -> str:
        """SHA-256 over the tokens that count, window by window; the label is not part of it."""
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
