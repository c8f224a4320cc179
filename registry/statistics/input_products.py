"""Products W_e G_e of a member's linear maps and the Grams of their inputs, kept in the cache (`kept_tensors`).

RegMean needs them (`registry.maths.trunk.regmean`). They depend on one member alone. Rows are in float64: G_e W_e loses
digits where it is solved, so float32 would not do.

Bytes of one member: 8 R H for each linear map of R rows and H inputs, four times its weight in bfloat16.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from jaxtyping import Float
from torch import Tensor

from registry.io.safetensors_file import Stream
from registry.io.torch_blocks import to_block, to_tensor
from registry.maths.trunk.combination import Rows
from registry.maths.trunk.regmean import products
from registry.member import Member
from registry.statistics.kept_tensors import PRODUCTS, KeptTensors
from store.arrays import Block


@dataclass(frozen=True)
class InputProducts:
    """Products of members' linear maps and the Grams of their inputs. Safe for several threads.

    Attributes:
        kept: the files.
    """

    kept: KeptTensors = field(default_factory=KeptTensors)

    @contextmanager
    def of(self, member: Member, site: str, layer: int, names: Sequence[str]) -> Iterator[dict[str, Rows]]:
        """Open the products of the maps of one input: name of the map → its rows, float64 (r, H).

        Args:
            member: the member.
            site: the site of their input.
            layer: the layer.
            names: the weights of the maps, in the dense model.

        Raises:
            DamagedError: a stored array is damaged.
            StorageError: the disk is full or refuses.
        """
        made_from = [layer, list(names), arrays_of(member, site, layer, names)]
        with self.kept.opened(PRODUCTS, made_from, lambda: _streams(member, site, layer, names)) as tensors:
            yield {name: partial(tensors.rows, name) for name in names}


def arrays_of(member: Member, site: str, layer: int, names: Sequence[str] = ()) -> list[str]:
    """Return the digests of the arrays of one site and layer's Gram, and of some weights."""
    links = [member.link("statistics", f"{site}/gram/{layer}"), member.link("statistics", f"{site}/exponents")]
    return [link.digest for link in (*links, *map(member.weight, names))]


def _streams(member: Member, site: str, layer: int, names: Sequence[str]) -> list[Stream]:
    gram = member.packed_statistics(site, layer).gram  # (H, H)
    return [Stream(name, "float64", member.weight(name).shape, partial(_blocks, member, name, gram)) for name in names]


def _blocks(member: Member, name: str, gram: Float[Tensor, "H H"]) -> Iterator[Block]:
    source = member.open_weight(name)
    return map(to_block, products((to_tensor(block, source.dtype) for block in source.blocks()), gram))
