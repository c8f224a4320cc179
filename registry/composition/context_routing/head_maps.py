"""Head maps of a composition: each expert's own head as a map in front of the shared one, from weights and counts."""

from collections.abc import Iterator
from tempfile import TemporaryFile
from threading import Lock
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from registry.composition.plan import Plan
from registry.io.torch_blocks import to_block, to_tensor
from registry.maths.context.head_map import HeadSums
from registry.member import Member

_ROWS = 1024
"""Rows of the heads that are summed at once."""


@runtime_checkable
class SharedTensors(Protocol):
    """A source of the tensors that all experts share."""

    @property
    def plan(self) -> Plan:
        """The composition."""

    def combined(self, name: str) -> Iterator[Float[Tensor, "r ..."]]:
        """Yield the rows of one tensor, under its name in the dense model."""


class HeadMaps:
    """The head map of each expert (`registry.maths.context.head_map`), computed when it is first used.

    Those of one expert are in memory at a time: its tensors follow one another in a folder, or each takes all experts.

    Args:
        source: the shared head and norm.
    """

    def __init__(self, source: SharedTensors) -> None:
        self._source, self._lock = source, Lock()
        self._kept: tuple[int, int, tuple[Tensor, Tensor]] | None = None
        self._affine: tuple[int, tuple[Tensor, Tensor]] | None = None
        self._rows: Any = None
        """Rows of the shared head, (n, H) in float32, once they are needed."""
        self._numbers = torch.empty(0, dtype=torch.int64)
        """Token → its row there."""

    def factors(self, expert: int, rank: int) -> tuple[Float[Tensor, "H k"], Float[Tensor, "k H"]]:
        """Return M_e of one expert as two factors, float64.

        Args:
            expert: its number among the members.
            rank: k.
        """
        with self._lock:
            if self._kept is None or self._kept[:2] != (expert, rank):
                self._kept = None
                self._kept = (expert, rank, self._sums(expert).solve(rank))
            return self._kept[2]

    def affine(self, expert: int) -> tuple[Float[Tensor, "H H"], Float[Tensor, "H"]]:
        """Return M_e and v_e of one expert, float64; v_e is zero where the last norm has no bias.

        Args:
            expert: its number among the members.
        """
        with self._lock:
            if self._affine is None or self._affine[0] != expert:
                self._affine = None
                self._affine = (expert, self._sums(expert).affine())
            return self._affine[1]

    def _sums(self, expert: int) -> HeadSums:
        plan = self._source.plan
        member, family, architecture = plan.members[expert], plan.lead.family, plan.lead.architecture
        norm = family.head_input(architecture)
        head = family.embedding if architecture.tie_word_embeddings else family.head
        shared_norm, own_norm = (scale + norm.offset for scale in self._vectors(member, f"{norm.norm}.weight"))
        biases = self._vectors(member, f"{norm.norm}.bias") if norm.bias else None
        counts = member.token_counts.double()
        share = counts / counts.sum()
        sums, start = HeadSums(len(shared_norm)), 0
        for block in _blocks(member, head):  # all are read, which checks their digest
            for mine in block.split(_ROWS):
                part = share[start : start + len(mine)]
                used = part.nonzero()[:, 0]
                theirs = self._shared_rows(head, used + start)
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

    def _shared_rows(self, head: str, tokens: Int64[Tensor, "r"]) -> Float[Tensor, "r H"]:
        """Return rows of the shared head, float32, which is combined once: rows that members use wait in a file."""
        if self._rows is None:
            members = self._source.plan.members
            counts = [member.token_counts for member in members]
            used = torch.zeros(max(map(len, counts)), dtype=torch.bool)
            for each in counts:
                used[: len(each)] |= each > 0
            self._numbers, start = used.cumsum(0) - 1, 0
            with TemporaryFile() as file:
                for block in self._source.combined(head):
                    here = used[start : start + len(block)]
                    file.write(to_block(block[: len(here)][here].float()).tobytes())
                    start += len(block)
                file.flush()
                self._rows = np.memmap(file, dtype=np.float32, mode="r").reshape(int(used.sum()), -1)
        return torch.from_numpy(self._rows[self._numbers[tokens].numpy()])

    def _vectors(self, member: Member, name: str) -> tuple[Float[Tensor, "H"], Float[Tensor, "H"]]:
        """Return a vector of the shared model and that of a member, float64."""
        shared, own = self._source.combined(name), _blocks(member, name)
        return torch.cat(list(shared)).double(), torch.cat(list(own)).double()


def _blocks(member: Member, name: str) -> Iterator[Float[Tensor, "r ..."]]:
    source = member.open_weight(name)
    return (to_tensor(block, source.dtype) for block in source.blocks())
