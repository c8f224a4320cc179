"""The kept tokens of one member on their way down the layers of a refit, and those that an expert is fitted to.

Shapes: N windows of S tokens, taken in batches of b; T tokens; H hidden size.
"""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from registry.member import Member
from registry.runtime.row_file import BLOCK_ROWS, RowFile

BATCH_TOKENS = 2048
"""Tokens of a batch, in whole windows: what the working memory of a refit grows with."""


class Text:
    """One member's tokens, with the streams of the layer that is being refitted.

    A stream is a file of float32 numbers whose rows are windows, (S, H) each; it begins empty.

    Attributes:
        ids: the tokens, (N, S).
        keep: True for the tokens that count, (N, S).
        dense: h°, the residual stream of the dense expert: before the layer, and after it once the layer has run.
        composed: h, that of the composed model: before the layer; after the layer's attention; after the layer.
        target: what attention should give; later what the MLP should give.
        mlp_input: the input of the composed model's router and MLPs.
        dense_mlp: the output of the dense expert's MLP, where a norm follows it.
        experts: the expert that each token goes to, (N, S).
    """

    def __init__(self, member: Member, number: int, hidden_size: int, work: Path) -> None:
        calibration = member.kept_tokens
        self.member, self.ids, self.keep = member, calibration.ids, calibration.keep
        self.experts = torch.zeros(self.ids.shape, dtype=torch.int64)
        names, shape = ("dense", "composed", "target", "mlp_input", "dense_mlp"), (self.ids.shape[1], hidden_size)
        streams = (RowFile(work / f"{number}-{name}.stream", shape) for name in names)
        self.dense, self.composed, self.target, self.mlp_input, self.dense_mlp = streams

    def batches(self) -> Iterator[slice]:
        """Yield the windows of each batch."""
        count, width = self.ids.shape
        size = max(1, BATCH_TOKENS // width)
        for first in range(0, count, size):
            yield slice(first, min(first + size, count))


Block = tuple[int, Float[Tensor, "T H"], Float[Tensor, "T H"], Bool[Tensor, "T"]]
"""The number of a text, and of each token the input of the MLP, its target, and whether it is routed to the expert."""


class Queue:
    """The inputs and targets of an expert's MLP, text by text, in a file that is created or emptied."""

    def __init__(self, path: Path, size: int) -> None:
        self.size, self._rows = size, RowFile(path, (2 * size,))
        self._texts: list[tuple[int, int]] = []  # (number of the text, tokens) of each addition
        self._routed: list[Bool[Tensor, T]] = []

    def add(
        self, text: int, mlp_input: Float[Tensor, "T H"], target: Float[Tensor, "T H"], routed: Bool[Tensor, "T"]
    ) -> None:
        """Add tokens of a text, after those of the texts before."""
        if len(routed):
            self._rows.append(torch.cat([mlp_input, target], dim=1))
            self._texts.append((text, len(routed)))
            self._routed.append(routed)

    def blocks(self) -> Iterator[Block]:
        """Yield all tokens, some of one text at a time."""
        if not self._routed:
            return
        routed, start = torch.cat(self._routed), 0
        for text, additions in groupby(self._texts, key=itemgetter(0)):
            stop = start + sum(count for _, count in additions)
            for first in range(start, stop, BLOCK_ROWS):
                rows = slice(first, min(first + BLOCK_ROWS, stop))
                both = self._rows.read(rows)
                yield text, both[:, : self.size], both[:, self.size :], routed[rows]
            start = stop

    def clear(self) -> None:
        """Remove all tokens."""
        self._rows.clear()
        self._texts, self._routed = [], []
