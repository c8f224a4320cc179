"""Source of refitted tensors, which replace stored ones.

Shapes: E members, H hidden size, V vocabulary; O and I the outputs and inputs of one linear map, weight (O, I).
"""

from collections.abc import Iterator
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from registry.composition.stored import pass_over
from registry.io.process import return_freed_memory
from registry.io.safetensors_file import Stream, write_shard
from registry.io.torch_blocks import RowReader, dtype_name, to_block
from registry.maths.refit import Factor, LeastSquares
from registry.maths.trunk.combination import Combination, aligned
from registry.methods.moe.context.context_inputs import ContextInputs
from registry.methods.moe.tensor_source import RouterSolver, TensorSource
from store.arrays import ArraySource

_KEY = "tensor"
"""The name of the only tensor in each file of a refit."""


_HEAD_ROWS = 512
"""Rows of the head that are solved for at once."""


class RefitSource:
    """Tensors of another source, some of them replaced by those of a refit, and the routers that the refit solved.

    Args:
        inner: the source of every other tensor.
        folder: the folder for refitted tensors, one file each.
        routers: in place of those of the inner source; None where these stay.
    """

    def __init__(self, inner: TensorSource, folder: Path, routers: RouterSolver | None) -> None:
        self._inner, self._folder = inner, folder
        self.plan = inner.plan
        self.routers = routers or inner.routers
        self.context = ContextInputs(self)
        self._files: dict[tuple[int | None, str], Path] = {}
        """(number of the member, or None for the trunk; name of the tensor) → file."""
        self._head: list[LeastSquares] = []

    def put(self, member: int | None, name: str, tensor: Float[Tensor, "O I"]) -> None:
        """Replace a tensor of the trunk, or of one member's MLP."""
        dtype = dtype_name(tensor.dtype)
        path = self._folder / f"{len(self._files)}.safetensors"
        write_shard(path, [Stream(_KEY, dtype, tuple(tensor.shape), lambda: [to_block(tensor)])])
        self._files[member, name] = path

    def put_head(self, sums: list[LeastSquares]) -> None:
        """Replace the head by the solution of these sums, one a member.

        Args:
            sums: the head's inputs x in the composition, and their products with the inputs x° of the member's own
                head, (H, H): `mapped` by the member's head (V, H) they become the sums of a map to V outputs.
        """
        self._head = sums

    def combined(self, name: str) -> Iterator[Float[Tensor, "r ..."]]:
        """Yield the rows of one tensor: the refitted one in one block, or those of the inner source."""
        if (None, name) in self._files:
            yield self._tensor(None, name)
        elif self._head and name == self.plan.lead.family.head:
            yield from self._refitted_head(name)
        else:
            yield from self._inner.combined(name)

    def mlp(self, member: int, name: str) -> ArraySource:
        """Return one MLP tensor of a member: the refitted one, or that of the inner source."""
        if (member, name) not in self._files:
            return self._inner.mlp(member, name)
        dtype = self.plan.recipe.dtype or self.plan.members[member].link("mlp", name).dtype
        return ArraySource.of(to_block(self._tensor(member, name)), dtype)

    def _tensor(self, member: int | None, name: str) -> Tensor:
        from safetensors import safe_open

        with safe_open(self._files[member, name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(_KEY)
        return tensor

    def _refitted_head(self, name: str) -> Iterator[Float[Tensor, "r H"]]:
        """Solve the head (V, H) in blocks of rows: a row of a linear map depends on no other row of it."""
        members = self.plan.members
        towards = RowReader(self._inner.combined(name))  # W₀, (V, H)
        heads = Combination(name, [pass_over(member, name) for member in members], self.plan.weights)
        factors: dict[tuple[int, ...], Factor] = {}
        for rows in aligned(heads):  # the same rows of every head; None past a smaller vocabulary
            present = tuple(rows.present)
            if present not in factors:
                factors[present] = self._factor(present)
            longest = max(len(part) for part in rows.parts if part is not None)
            for start in range(0, longest, _HEAD_ROWS):
                cross: Float[Tensor, "r H"] | None = None
                for member in present:
                    part = rows.parts[member]
                    assert part is not None
                    own = part[start : start + _HEAD_ROWS].double() @ self._head[member].cross
                    cross = own if cross is None else cross.add_(own)
                assert cross is not None
                yield factors[present].solve(cross, towards.take(len(cross)))
            return_freed_memory()

    def _factor(self, members: tuple[int, ...]) -> Factor:
        """Return the factor of the summed Gram (H, H) of some members."""
        first, *others = members
        gram = self._head[first].gram
        for member in others:
            gram.add_(self._head[member].gram)
        return Factor(gram)
