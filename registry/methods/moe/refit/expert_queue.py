"""The tokens that one expert is fitted to, in a file.

Shapes: T tokens, H hidden size.
"""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from registry.runtime.row_file import BLOCK_ROWS, RowFile

Block = tuple[int, Float[Tensor, "T H"], Float[Tensor, "T H"], Bool[Tensor, "T"]]
"""The number of a text, and of each token the input of the MLP, its target, and whether it is routed to the expert."""


class Queue:
    """The inputs and targets of an expert's MLP, text by text.

    Args:
        path: the file; created or emptied.
        size: H.
    """

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
