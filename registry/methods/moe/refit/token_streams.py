"""The kept tokens of one member on their way down the layers of a refit.

Shapes: N windows of S tokens, taken in batches of b; H hidden size.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor

from registry.member import Member
from registry.runtime.row_file import RowFile

BATCH_TOKENS = 2048
"""Tokens of a batch, in whole windows: what the working memory of a refit grows with."""


@dataclass
class Text:
    """One member's tokens, with the streams of the layer that is being refitted.

    A stream is a file of float32 numbers whose rows are windows, (S, H) each.

    Attributes:
        member: the member whose tokens these are.
        ids: the tokens, (N, S).
        keep: True for the tokens that count, (N, S).
        dense: h°, the residual stream of the dense expert: before the layer, and after it once the layer has run.
        composed: h, that of the composed model: before the layer; after the layer's attention; after the layer.
        target: what attention should give; later what the MLP should give.
        mlp_input: the input of the composed model's router and MLPs.
        dense_mlp: the output of the dense expert's MLP, where a norm follows it.
        experts: the expert that each token goes to, (N, S).
    """

    member: Member
    ids: Int[Tensor, "N S"]
    keep: Bool[Tensor, "N S"]
    dense: RowFile
    composed: RowFile
    target: RowFile
    mlp_input: RowFile
    dense_mlp: RowFile
    experts: Int64[Tensor, "N S"] = field(init=False)

    def __post_init__(self) -> None:
        self.experts = torch.zeros(self.ids.shape, dtype=torch.int64)

    @classmethod
    def of(cls, member: Member, number: int, hidden_size: int, work: Path) -> "Text":
        """Return the tokens of a member; its streams are empty files in `work`."""
        calibration = member.calibration
        assert calibration is not None  # checked with the plan
        shape = (calibration.ids.shape[1], hidden_size)
        names = ("dense", "composed", "target", "mlp_input", "dense_mlp")
        streams = {name: RowFile(work / f"{number}-{name}.stream", shape) for name in names}
        return cls(member, calibration.ids, calibration.keep, **streams)

    def batches(self) -> Iterator[slice]:
        """Yield the windows of each batch."""
        count, width = self.ids.shape
        size = max(1, BATCH_TOKENS // width)
        for first in range(0, count, size):
            yield slice(first, min(first + size, count))
