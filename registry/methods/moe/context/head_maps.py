"""Head maps of a composition: each expert's own head as a map in front of the shared one, from weights and counts."""

from collections.abc import Iterator
from tempfile import TemporaryFile
from threading import local
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from registry.composition.plan import Plan
from registry.io.process import return_freed_memory
from registry.io.torch_blocks import to_block, to_tensor
from registry.maths.context.head_map import HeadSums
from registry.maths.threads import Once
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

    Safe for several threads, of which each keeps the map that it used last: tensors of one expert follow one another.
    Where tensors hold the maps of all experts, `keep` has them wait in files.

    Args:
        source: the shared head and norm.
    """

    def __init__(self, source: SharedTensors) -> None:
        self._source = source
        self._last = local()
        self._kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._shared_head = Once(self._used_rows)

    def factors(
        self, expert: int, rank: int, *, keep: bool = False
    ) -> tuple[Float[Tensor, "H k"], Float[Tensor, "k H"]]:
        """Return M_e of one expert as two factors, float64.

        Args:
            expert: its number among the members.
            rank: k.
            keep: they will be asked for again after those of other experts.
        """
        last: tuple[int, int, tuple[Tensor, Tensor]] | None = getattr(self._last, "factors", None)
        if last is not None and last[:2] == (expert, rank):
            return last[2]
        self._last.factors = last = None
        if (found := self._kept.get((expert, rank))) is None:
            found = self._sums(expert).solve(rank)
            return_freed_memory()
        if keep:
            found = self._kept.setdefault((expert, rank), (_in_file(found[0]), _in_file(found[1])))
        self._last.factors = expert, rank, found
        return found

    def affine(self, expert: int) -> tuple[Float[Tensor, "H H"], Float[Tensor, "H"]]:
        """Return M_e and v_e of one expert, float64; v_e is zero where the last norm has no bias.

        Args:
            expert: its number among the members.
        """
        last: tuple[int, tuple[Tensor, Tensor]] | None = getattr(self._last, "affine", None)
        if last is None or last[0] != expert:
            self._last.affine = last = None
            last = self._last.affine = (expert, self._sums(expert).affine())
        return last[1]

    def _sums(self, expert: int) -> HeadSums:
        plan = self._source.plan
        member, family, architecture = plan.members[expert], plan.lead.family, plan.lead.architecture
        norm = family.head_input(architecture)
        head = _head(plan)
        shared_norm, own_norm = (scale + norm.offset for scale in self._vectors(member, f"{norm.norm}.weight"))
        biases = self._vectors(member, f"{norm.norm}.bias") if norm.bias else None
        counts = member.token_counts.double()
        share = counts / counts.sum()
        sums, start = HeadSums(len(shared_norm)), 0
        for block in _blocks(member, head):  # all are read, which checks their digest
            for mine in block.split(_ROWS):
                part = share[start : start + len(mine)]
                used = part.nonzero()[:, 0]
                theirs = self._shared_rows(used + start)
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

    def _shared_rows(self, tokens: Int64[Tensor, "r"]) -> Float[Tensor, "r H"]:
        """Return rows of the shared head, float32."""
        rows, numbers = self._shared_head()
        return torch.from_numpy(rows[numbers[tokens].numpy()])

    def _used_rows(self) -> tuple[Any, Int64[Tensor, "V"]]:
        """Combine the shared head once; return the rows that members use, (n, H) in a file, and token → its row."""
        plan = self._source.plan
        counts = [member.token_counts for member in plan.members]
        used = torch.zeros(max(map(len, counts)), dtype=torch.bool)
        for each in counts:
            used[: len(each)] |= each > 0
        start = 0
        with TemporaryFile() as file:
            for block in self._source.combined(_head(plan)):
                here = used[start : start + len(block)]
                file.write(to_block(block[: len(here)][here].float()).tobytes())
                start += len(block)
            file.flush()
            rows = np.memmap(file, dtype=np.float32, mode="r").reshape(int(used.sum()), -1)
        return rows, used.cumsum(0) - 1

    def _vectors(self, member: Member, name: str) -> tuple[Float[Tensor, "H"], Float[Tensor, "H"]]:
        """Return a vector of the shared model and that of a member, float64."""
        shared, own = self._source.combined(name), _blocks(member, name)
        return torch.cat(list(shared)).double(), torch.cat(list(own)).double()


def _head(plan: Plan) -> str:
    """Return the name of the head's weight in the dense model."""
    family = plan.lead.family
    return family.embedding if plan.lead.architecture.tie_word_embeddings else family.head


def _in_file(tensor: Float[Tensor, "_ _"]) -> Float[Tensor, "_ _"]:
    """Return a tensor whose numbers are in a temporary file, read when they are used."""
    with TemporaryFile() as file:
        file.write(to_block(tensor).tobytes())
        file.flush()
        return torch.from_numpy(np.memmap(file, dtype=np.float64, mode="c").reshape(tuple(tensor.shape)))


def _blocks(member: Member, name: str) -> Iterator[Float[Tensor, "r ..."]]:
    source = member.open_weight(name)
    return (to_tensor(block, source.dtype) for block in source.blocks())
