"""What a refit gives: tensors in place of stored ones, and routers."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from registry.composition.tensor_source import TensorSource, pass_over
from registry.io.safetensors_writer import Stream, write_shard
from registry.io.torch_blocks import dtype_name, to_block
from registry.maths.refit import LeastSquares
from registry.maths.statistics import Statistics
from registry.maths.trunk.combination import Combination, aligned
from store.arrays import ArraySource


class RefitSource(TensorSource):
    """Materials in which some tensors were refitted, and the routers solved on the way.

    Args:
        inner: what everything else is made from.
        folder: where refitted tensors are written.
    """

    def __init__(self, inner: TensorSource, folder: Path) -> None:
        super().__init__(inner.plan)
        self._inner, self._folder = inner, folder
        self._files: dict[tuple[int | None, str], Path] = {}
        self._gates: dict[int, Tensor] = {}
        self._now: tuple[int, list[tuple[Statistics, ...]]] = (-1, [])
        self._head: list[LeastSquares] = []

    def put(self, member: int | None, name: str, tensor: Tensor) -> None:
        """Put a tensor in place: of the trunk, or of one member's MLP."""
        dtype = dtype_name(tensor.dtype)
        path = self._folder / f"{len(self._files)}.safetensors"
        write_shard(path, [Stream("tensor", dtype, tuple(tensor.shape), lambda: [to_block(tensor)])])
        self._files[member, name] = path

    def put_head(self, sums: list[LeastSquares]) -> None:
        """Put the head's sums in place, one a member: of its inputs, and their products with the member's own."""
        self._head = sums

    def put_statistics(self, layer: int, folds: list[tuple[Statistics, ...]]) -> None:
        """Solve a layer's router from its statistics, one tuple of folds a member."""
        self._now = layer, folds
        self._gates[layer] = super().gate(layer)

    def combined(self, name: str) -> Iterator[Tensor]:
        """Yield the rows of one tensor that all members share."""
        if (None, name) in self._files:
            yield self._tensor(None, name)
        elif self._head and name == self.plan.lead.family.head:
            yield from self._refitted_head(name)
        else:
            yield from self._inner.combined(name)

    def mlp(self, member: int, name: str) -> ArraySource:
        """Return one MLP tensor of a member."""
        if (member, name) not in self._files:
            return self._inner.mlp(member, name)
        dtype = self.plan.recipe.dtype or self.plan.members[member].link("mlp", name).dtype
        return ArraySource.of(to_block(self._tensor(member, name)), dtype)

    def folds(self, member: int, layer: int) -> tuple[Statistics, ...]:
        """Return a member's statistics of the layer that is being refitted, in parts."""
        assert self._now[0] == layer
        return self._now[1][member]

    def statistics(self, member: int, layer: int) -> Statistics:
        """Return a member's statistics of the layer that is being refitted."""
        total, *others = self.folds(member, layer)
        for other in others:
            total = total + other
        return total

    def gate(self, layer: int) -> Tensor:
        """Return gate.weight of one layer, as it was solved on the way."""
        return self._gates[layer]

    def _tensor(self, member: int | None, name: str) -> Tensor:
        from safetensors import safe_open

        with safe_open(self._files[member, name], framework="pt") as file:
            tensor: Tensor = file.get_tensor("tensor")
        return tensor

    def _refitted_head(self, name: str) -> Iterator[Tensor]:
        members = self.plan.members
        towards, sums = torch.cat(list(self._inner.combined(name))), self._head
        for rows in aligned(Combination(name, [pass_over(member, name) for member in members], self.plan.weights)):
            parts = [own.mapped(part) for own, part in zip(sums, rows.parts, strict=True) if part is not None]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            yield total.solve(towards[rows.start : rows.start + len(total.cross)])
