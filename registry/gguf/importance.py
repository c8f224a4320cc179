"""Importance matrices (imatrix) out of statistics: for llama.cpp, which weighs the errors of quantized columns by them.

Of a matrix that reads x, llama.cpp minimises Σ_i w_i (W_ri − Ŵ_ri)² in each row r, with w_i = Σ_t x_ti² / n. This is
the diagonal of the Gram that is stored: of one member for an expert's matrices, and of all members, summed, for the
rest. Matrices that no statistics belong to (down projections, routers, added layers) get none.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float64
from torch import Tensor

from registry.families.sites import ATTENTION_INPUT, ATTENTION_OUTPUT, HEAD_INPUT, MLP_INPUT
from registry.member import Member

_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_SITES = {
    "attn_q": ATTENTION_INPUT,
    "attn_k": ATTENTION_INPUT,
    "attn_v": ATTENTION_INPUT,
    "attn_qkv": ATTENTION_INPUT,
    "attn_output": ATTENTION_OUTPUT,
    "ffn_gate": MLP_INPUT,
    "ffn_up": MLP_INPUT,
    "ffn_gate_exps": MLP_INPUT,
    "ffn_up_exps": MLP_INPUT,
    "ffn_gate_up_exps": MLP_INPUT,
}
"""llama.cpp's name of a matrix below its layer → the site of its input."""


@dataclass(frozen=True)
class Importance:
    """The extent of an importance matrix.

    Attributes:
        weighed: matrices that it weighs, of which a tensor of experts counts as one.
        matrices: all that may be quantized.
        members: members whose statistics it has.
    """

    weighed: int
    matrices: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class _Squares:
    """Σ_t x_t² of each channel, float64 of shape (E, C), and the tokens, (E, 1): of E members, or of their sum."""

    sums: Float64[Tensor, "E C"]
    counts: Float64[Tensor, "E 1"]

    def widened(self, width: int) -> "_Squares":
        """Return it for a stream that has more channels, whose weights are zero: they get the mean of the others."""
        more = self.sums.mean(dim=1, keepdim=True).expand(-1, width - self.sums.shape[1])
        return _Squares(torch.cat([self.sums, more], dim=1), self.counts)


def write_importance(model: Path, out: Path, members: Sequence[Member], added: Sequence[int]) -> Importance:
    """Write the importance matrix of a GGUF file, and return its extent.

    Args:
        model: the GGUF file, before it is quantized.
        members: in the order of its experts; one of them has statistics.
        added: numbers of its layers that no member has.
    """
    from gguf import GGUFReader, GGUFWriter

    known = [member for member in members if member.has_statistics(MLP_INPUT)]
    shapes = {one.name: tuple(int(size) for size in reversed(one.shape)) for one in GGUFReader(model).tensors}
    matrices = {name: shape for name, shape in shapes.items() if len(shape) > 1}
    layers = {number: number - sum(one < number for one in added) for number in _layers(matrices) - {*added}}
    writer, weighed = GGUFWriter(out, "imatrix"), 0
    writer.add_type("imatrix")
    text = ", ".join(f"{member.version.ref} {member.version.digest}" for member in known)
    writer.add_array("imatrix.datasets", [f"statistics of {text}"])  # of several llama.cpp keeps the first
    writer.add_uint32("imatrix.chunk_count", sum(member.tokens for member in known))
    writer.add_uint32("imatrix.chunk_size", 1)
    for name, squares in _found(matrices, members, layers).items():
        weighed += 1
        for part, values in (("in_sum2", squares.sums), ("counts", squares.counts)):
            writer.add_tensor(f"{name}.{part}", values.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Importance(weighed, len(matrices), tuple(member.version.ref for member in known))


def _layers(names: Mapping[str, object]) -> set[int]:
    return {int(match[1]) for name in names if (match := _NAME.fullmatch(name))}


def _found(
    matrices: Mapping[str, tuple[int, ...]], members: Sequence[Member], layers: Mapping[int, int]
) -> dict[str, _Squares]:
    """Return matrix → the squares of its input; without matrices whose statistics nobody has, or of fewer columns.

    Every Gram is read once, one at a time.
    """
    wanted: dict[tuple[str, int], dict[str, tuple[int, ...]]] = {}
    for name, shape in matrices.items():
        match = _NAME.fullmatch(name)
        if match and match[2] in _SITES and int(match[1]) in layers:
            wanted.setdefault((_SITES[match[2]], layers[int(match[1])]), {})[name] = shape
        elif name == "output.weight":
            wanted.setdefault((HEAD_INPUT, 0), {})[name] = shape
    found = {}
    for (site, layer), users in wanted.items():
        if (each := _squares(members, site, layer)) is None:
            continue
        whole = _Squares(each.sums.sum(0, keepdim=True), each.counts.sum(0, keepdim=True))
        for name, shape in users.items():
            own = each if len(shape) == 3 and shape[0] == len(members) else whole
            if own.sums.shape[1] <= shape[-1] and len(own.sums) == (shape[0] if len(shape) == 3 else 1):
                found[name] = own.widened(shape[-1])
    return found


def _squares(members: Sequence[Member], site: str, layer: int) -> _Squares | None:
    """Return the squares of members at a site, zeros of those without statistics; None if all are."""
    own = [member.packed_statistics(site, layer) if member.has_statistics(site) else None for member in members]
    sizes = {len(one.exponents) for one in own if one is not None}
    if len(sizes) != 1:
        return None
    none = torch.zeros(sizes.pop(), dtype=torch.float64)
    sums = torch.stack([none if one is None else one.diagonal for one in own])
    counts = torch.tensor([[0 if one is None else one.count] for one in own], dtype=torch.float64)
    return _Squares(sums, counts)
