"""Changes that experts make to the tensors of their base model: low-rank ones of matrices, and vectors of their own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from registry.checkpoint.adapter import WEIGHTS
from registry.checkpoint.adapter_config import CONFIG
from registry.checkpoint.version_files import ADAPTER
from registry.composition.recipe.shared_options import KEPT
from registry.errors import IncompatibleError
from registry.io.model_folder import fresh_folder, json_file, write_files
from registry.io.safetensors_file import Stream, write_shard
from registry.io.torch_blocks import read_tensor, to_block, torch_dtype
from registry.maths import lora_delta, spectrum, truncated
from registry.member import Member
from registry.progress import Progress, remark
from store.arrays import CARRIERS, ArraySource, Block

Kind = tuple[int, float, bool]
"""Rank and scaling of an expert in one layer, and whether it is DoRA; the rank is 0 where it changes nothing."""
NONE: Kind = (0, 1.0, False)
_LORA = ({"A", "B"}, {"A", "B", "magnitude"})
_EMBEDDING = {"embedding_A", "embedding_B"}


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
                f"{member.version.ref} changes {name} of shape {list(shape)} into {found}, and a low-rank change "
                "is of a matrix of the same shape",
                f"keep it whole: --to moe, --to ensemble, or reg export {member.version.ref} --out DIR",
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
        low_rank = parts.keys() - {"whole"}
        if (low_rank in _LORA or low_rank == _EMBEDDING) and member.merged.is_low_rank(target):
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


def write_truncated(member: Member, base: Member, out: Path, rank: int | None, progress: Progress) -> None:
    """Write the change of an expert that was trained in full as the folder of an adapter, as PEFT writes it.

    Every matrix that changed has the low-rank change nearest to its own, of a rank, or of as many as keep `KEPT` of
    all; a head that is tied to the embedding has the embedding's. Norms and biases are left out, which is said: servers
    take adapters without. The folder `out` is absent or empty.

    Raises:
        IncompatibleError: the expert has tensors of other shapes than the base model, or changes no matrix.
        OutputError, StorageError, DamagedError: as `write_adapter`.
    """
    changes = changes_of(member, base)
    ranks = choose_ranks([changes.whole], rank=rank, nbytes=None, share=KEPT)
    kept = {name: one for name, one in ranks.by_member[0].items() if one}
    if not kept:
        raise IncompatibleError(
            f"{member.version.ref} changes no matrix of {base.version.ref}",
            f"export it whole: reg export {member.version.ref} --out DIR",
        )
    truncated = dict[str, Change]()
    for target, own in kept.items():
        change = truncated[_module(base, target)] = changes.whole[target].truncated(own)
        if target == base.family.embedding == base.family.own_head(base.architecture):
            truncated[_module(base, base.family.head)] = change
    write_changes(base, truncated, out, progress)
    share = f"{ranks.kept[0]:.1%} of its change of {base.version.ref} in squares of weights"
    remark(progress, f"ranks from {min(kept.values()):,} to {max(kept.values()):,} keep {share}")
    if changes.vectors:
        remark(progress, f"{len(changes.vectors):,} norms and biases that were trained too are left out")


def write_changes(base: Member, changes: Mapping[str, Change], out: Path, progress: Progress) -> None:
    """Write changes, module → one of the scaling 1, as the folder of an adapter, as PEFT writes it.

    The folder `out` is absent or empty (IncompatibleError: there is no such module; else errors as `write_adapter`).
    """
    embedding = _module(base, base.family.embedding)
    shapes = {_module(base, name): shape for name, shape in base.shapes.items()}
    shapes.setdefault(_module(base, base.family.head), shapes[embedding])  # a head that is tied to it
    if strangers := sorted(changes.keys() - shapes.keys()):
        raise IncompatibleError(f"{base.version.ref} has no module {strangers[0]}", "compose the adapters again")
    streams = [
        stream
        for module, change in changes.items()
        for stream in _streams(module, change, shapes[module], embeds=module == embedding)
    ]
    nbytes = sum(stream.nbytes for stream in streams)
    ranks = {module: change.kind[0] for module, change in changes.items()}
    with fresh_folder(out, replace=None, nbytes=nbytes) as folder, progress("writing", nbytes, "B") as advance:
        write_shard(folder / WEIGHTS, streams, advance)
        write_files(folder, {CONFIG: json_file(_peft_config(base, ranks))})


def _module(base: Member, name: str) -> str:
    """Return the module of the base model's transformers class that has a tensor of its checkpoints."""
    return base.family.renamed.get(name, name).removesuffix(".weight")


def _streams(module: str, change: Change, shape: tuple[int, ...], *, embeds: bool) -> list[Stream]:
    """Return the factors of a change by PEFT's names; those of an embedding are of its transpose."""
    (outputs, inputs), rank = shape, change.kind[0]
    parts: dict[str, tuple[str, tuple[int, int]]] = {
        "lora_A.weight": ("A", (rank, inputs)), "lora_B.weight": ("B", (outputs, rank))
    }  # fmt: skip
    if embeds:
        parts = {"lora_embedding_A": ("B", (rank, outputs)), "lora_embedding_B": ("A", (inputs, rank))}

    def blocks(part: str) -> Iterator[Block]:
        factor = change.read(part).to(torch_dtype(change.dtype))
        yield to_block(factor.T if embeds else factor)

    return [
        Stream(f"base_model.model.{module}.{name}", change.dtype, size, partial(blocks, part))
        for name, (part, size) in parts.items()
    ]


def _peft_config(base: Member, modules: Mapping[str, int]) -> dict[str, Any]:
    """Return adapter_config.json of modules and their ranks; the scaling of all is 1."""
    most = max(modules.values())
    ends = {name.rpartition(".")[2] for name in modules}
    every = {_module(base, name) for name in base.shapes}
    whole = {name for name in every if name.rpartition(".")[2] in ends} <= modules.keys()
    other = {name: rank for name, rank in modules.items() if rank != most}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.name,
        "r": most,
        "lora_alpha": most,
        "rank_pattern": other,
        "alpha_pattern": other,
        "target_modules": sorted(ends if whole else modules),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
    }
