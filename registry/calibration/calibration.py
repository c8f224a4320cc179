"""The tokens themselves: equal windows, each with the length that counts."""

import hashlib
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int32, Int64
from torch import Tensor


@dataclass(frozen=True)
class Calibration:
    """Windows of tokens.

    Attributes:
        ids: token ids, int32 of shape (N, S); beyond a window's length they are padding of any value.
        lengths: tokens that count in each window, int32 of shape (N,), from 1 to S. Padding is on the right, where a
            causal model's earlier tokens cannot see it.
        label: what a person should know it as: file names, or that the expert sampled it.
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
        """Return how often each token comes among those that count; `vocabulary` is V, more than any token."""
        return torch.bincount(self.ids[self.keep].long(), minlength=vocabulary)

    @property
    def digest(self) -> str:
        """SHA-256 over the tokens that count, window by window; the label has no part in it."""
        state = hashlib.sha256(f"calibration {list(self.ids.shape)}\n".encode())
        state.update(self.lengths.contiguous().numpy().data)
        state.update(self.ids.masked_fill(~self.keep, 0).contiguous().numpy().data)
        return state.hexdigest()
