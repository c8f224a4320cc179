"""Changes that experts make to the tensors of their base model: low-rank ones of matrices, and vectors of their own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from registry.checkpoint.version_files import ADAPTER
from registry.errors import IncompatibleError
from registry.io.torch_blocks import read_tensor
from registry.maths import lora_delta, spectrum, truncated
from registry.member import Member
from store.arrays import CARRIERS, ArraySource

Kind = tuple[int, float, bool]
"""Rank and scaling of an expert in one layer, and whether it is DoRA; the rank is 0 where it changes nothing."""
NONE: Kind = (0, 1.0, False)
_LORA = ({"A", "B"}, {"A", "B", "magnitude"})
_EMBEDDING = {"embedding_A", "embedding_B"}
_REMEDY = "choose --to moe or --to ensemble"


@dataclass(frozen=True)
class Change:
    """A low-rank change of a matrix W, (O, I): A (r, I), B (O, r) and, of DoRA, g (O).

    Attributes:
        dtype: of A and B.
        read: returns `A`, `B` or `magnitude`, by its name.
    """

    kind: Kind
    dtype: str
    read: Callable[[str], Tensor]


@dataclass(frozen=True)
class Whole:
    """A change whose rank is to be chosen, of an expert that was trained in full.

    Attributes:
        base: W before.
        own: W after.
    """

    base: ArraySource
    own: ArraySource
    _made: dict[str, Tensor] = field(default_factory=dict)  # the factors that are not read yet

    def delta(self) -> Tensor:
        """Return ΔW, (O, I) float32."""
        return read_tensor(self.own).float() - read_tensor(self.base).float()

    def truncated(self, rank: int) -> Change:
        """Return the nearest change of a rank, in the dtype of W after."""
        return Change((rank, 1.0, False), self.own.dtype, partial(self._factor, rank))

    def _factor(self, rank: int, part: str) -> Tensor:
        if part not in self._made:
            self._made.update(zip("AB", truncated(self.delta(), rank), strict=True))
        return self._made.pop(part)


@dataclass(frozen=True)
class Changes:
    """All that one expert changes, by the base's names of tensors.

    Attributes:
        low_rank: matrices with the change that was trained.
        whole: matrices that were trained in full.
        vectors: norms and biases of its own.
    """

    low_rank: Mapping[str, Change]
    whole: Mapping[str, Whole]
    vectors: Mapping[str, ArraySource]


def changes_of(member: Member, base: Member) -> Changes:
    """Return what a member changes (IncompatibleError: it has tensors of other shapes, or one that is no matrix)."""
    low_rank = dict(_trained(member)) if member.is_adapter else {}
    whole, vectors = dict[str, Whole](), dict[str, ArraySource]()
    for name, shape in base.shapes.items():
        own = member.weight(name) if name in member.shapes else None
        if own is not None and (name in low_rank or own.digest == base.weight(name).digest):
            continue
        if own is None or own.shape != shape or len(shape) > 2:
            found = "none" if own is None else list(own.shape)
            raise IncompatibleError(
                f"{member.version.ref} changes {name} of shape {list(shape)} into {found}, and this output adds "
                "low-rank changes to matrices, and has vectors of one shape",
                _REMEDY,
            )
        if len(shape) == 1:
            vectors[name] = _later(member, name)
        else:
            whole[name] = Whole(_later(base, name), _later(member, name))
    return Changes(low_rank, whole, vectors)


def _later(member: Member, name: str) -> ArraySource:
    """Return a weight of a member, which is opened when it is read."""
    link = member.weight(name)
    return ArraySource(link.dtype, link.shape, lambda: member.source(name).blocks())


def _trained(member: Member) -> Iterator[tuple[str, Change]]:
    """Yield each matrix that an adapter has a low-rank change of, with that."""
    adapter = member.merged.adapter
    for target, parts in member.merged.changes.items():
        if parts.keys() in _LORA or parts.keys() == _EMBEDDING:
            kind, prefix = adapter.kind(parts), "" if "A" in parts else "embedding_"
            dtypes = {member.link(ADAPTER, adapter.names[parts[f"{prefix}{part}"]]).dtype for part in "AB"}
            dtype = dtypes.pop() if len(dtypes) == 1 else "float32"  # which holds the others exactly
            yield target, Change(kind, dtype, partial(_factor, member, target, kind))


def _factor(member: Member, target: str, kind: Kind, part: str) -> Tensor:
    """Return a factor as it was trained, or g = m / |W + s B A| of DoRA in float32 (Liu et al. 2024, eq. 5)."""
    adapter, parts = member.merged.adapter, member.merged.changes[target]
    read = {one: partial(member.open, ADAPTER, adapter.names[name]) for one, name in parts.items()}
    if part == "magnitude":
        delta = lora_delta(read_tensor(read["A"]()), read_tensor(read["B"]()), kind[1])
        total = read_tensor(member.merged.base.source(target)) + delta
        norms: Tensor = read_tensor(read["magnitude"]()).float() / torch.linalg.norm(total, dim=1)
        return norms
    if part in read:
        return read_tensor(read[part]())
    other = {"A": "embedding_B", "B": "embedding_A"}[part]  # PEFT's are of the embedding's transpose, (H, V)
    return read_tensor(read[other]()).T


@dataclass(frozen=True)
class Ranks:
    """The ranks of changes that were trained in full.

    Attributes:
        by_member: of each member target → rank, 0 where it keeps nothing of a matrix.
        kept: of each member the share that they keep of its changes, in squares of weights, from 0 to 1.
    """

    by_member: Sequence[Mapping[str, int]]
    kept: Sequence[float]


def choose_ranks(
    changes: Sequence[Mapping[str, Whole]], *, rank: int | None, nbytes: float | None, share: float
) -> Ranks:
    """Return the ranks of members' changes: `rank` of each, or as many as take `nbytes`, or keep a `share` of each.

    Directions are taken in the order of the share of a member's change that a byte of them keeps, so that all members
    lose alike. Reads every matrix once; time grows with O I m and m³ of each, m the less of O and I.
    """
    found = [{name: spectrum(one.delta()) for name, one in own.items()} for own in changes]
    totals = [float(sum(values.sum() for values in own.values())) or 1.0 for own in found]
    taken = [dict.fromkeys(own, 0) for own in found]
    kept, used = [0.0] * len(found), 0.0
    for member, name, part, cost in _directions(changes, found, totals):
        if rank is not None:
            enough = taken[member][name] >= rank
        elif nbytes is not None:
            enough = used + cost > nbytes
        else:
            enough = kept[member] >= share
        if not enough:
            taken[member][name] += 1
            kept[member] += part
            used += cost
    return Ranks(taken, kept)


def _directions(
    changes: Sequence[Mapping[str, Whole]], found: Sequence[Mapping[str, Tensor]], totals: Sequence[float]
) -> list[tuple[int, str, float, int]]:
    """Return each direction: member, matrix, the share of its change that it keeps, and its bytes; the best first."""
    every = []
    for member, (own, spectra) in enumerate(zip(changes, found, strict=True)):
        for name, values in spectra.items():
            cost = CARRIERS[own[name].own.dtype][1] * sum(own[name].own.shape)
            every += [(member, name, part, cost) for part in (values / totals[member]).tolist() if part]
    return sorted(every, key=lambda one: -one[2] / one[3])
