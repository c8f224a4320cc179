"""Plans of SIMoEs: experts that were trained together, as they were trained (SIMoE, Chen et al. 2025)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from registry.composition.compatibility import make_subset
from registry.composition.plan import OutputTensor, Plan
from registry.composition.recipe.recipe import Recipe
from registry.composition.stored import Stacked, Stored, held
from registry.errors import IncompatibleError, InvalidInputError
from registry.io.safetensors_file import Stream
from registry.io.torch_blocks import read_tensor, to_block, to_tensor, torch_dtype
from registry.maths.interpolation import unpack_bits
from registry.member import Member
from registry.methods.simoe.host import MODELLING_FILE, SIMOE, interpolated_layers, layer_outputs
from registry.methods.simoe.versions import DELTA, KEY, MASK, ROW
from registry.methods.whole_members import dense_settings, loading
from registry.workspace import Workspace
from store.arrays import Block
from store.catalog import VersionRecord


@dataclass(frozen=True, eq=False)
class OpenRows:
    """The rows of a stored D whose outputs are open in the mask of some member, in order."""

    member: Member
    array: str
    opened: Bool[Tensor, "O"]

    @property
    def shape(self) -> tuple[int, int]:
        """Its shape, (K, I)."""
        return int(self.opened.sum()), self.member.link(KEY, self.array).shape[1]

    def stream(self, name: str, dtype: str) -> Stream:
        """Return it as it is written."""
        return Stream(name, dtype, self.shape, lambda: held(self._blocks(dtype), dtype, name))

    def _blocks(self, dtype: str) -> Iterator[Block]:
        source, start = self.member.open(KEY, self.array), 0
        for block in source.blocks():  # all of them, so that the digest is checked
            rows = to_tensor(block, source.dtype)
            kept = rows[self.opened[start : start + len(rows)]]
            start += len(rows)
            if len(kept):
                yield to_block(kept.to(torch_dtype(dtype)))


def config(plan: Plan) -> dict[str, Any]:
    """Return config.json: the base model's own, the members, the layers that may have a D, and how many rows of it."""
    base = plan.lead
    return {
        **dense_settings(base),
        **loading(plan, MODELLING_FILE.stem, "SimoeConfig"),
        "interpolated_layers": interpolated_layers(base.family, base.architecture),
        "interpolated_rows": [int(opened.sum()) for opened in plan.parts],
        "prompt_tokens": int(plan.members[0].content[KEY]["prompt_tokens"]),
        "vocab_size": base.architecture.vocab_size,
    }


def _opened(members: Sequence[Member], base: Member) -> tuple[Bool[Tensor, "O"], ...]:
    """Return for each layer the outputs that the mask of some member opens (DamagedError: a mask is damaged)."""
    outputs = layer_outputs(base.family, base.architecture)
    masks = [unpack_bits(read_tensor(member.open(KEY, MASK)), sum(outputs)) for member in members]
    opened: tuple[Tensor, ...] = torch.stack(masks).any(dim=0).split(outputs)
    return opened


def _tensors(
    members: tuple[Member, ...], base: Member, dtype: str | None, opened: Sequence[Tensor]
) -> Iterator[OutputTensor]:
    """Yield the base model's tensors, the open rows of D of each linear layer, and the members' masks and router rows.

    Where no row is open there is no tensor: many programs take no empty one.
    """
    renamed = base.family.renamed
    for link in base.arrays:
        if link.role in ("trunk", "mlp"):
            name = renamed.get(link.name, link.name)
            yield OutputTensor(name, dtype or link.dtype, Stored(base, link.role, link.name))
    layers = interpolated_layers(base.family, base.architecture)
    for layer, name, rows in zip(layers, base.family.layer_matrices(base.architecture), opened, strict=True):
        array = f"{DELTA}{name}"
        if rows.any():
            own = dtype or members[0].link(KEY, array).dtype
            yield OutputTensor(f"{layer}.delta", own, OpenRows(members[0], array, rows))
    for name, array in (("masks", MASK), ("router", ROW)):
        yield OutputTensor(name, members[0].link(KEY, array).dtype, Stacked(members, KEY, array))


def make_simoe(members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
    """Return the SIMoE of `members`, versions of different experts in any order, on the base model of their training.

    Raises:
        InvalidInputError: no member, or a name twice.
        IncompatibleError: a member is no expert of a SIMoE, they are of several, or the base model is another.
        DamagedError: a mask is damaged.
    """
    check_trained(members)
    subset = make_subset(members, base, recipe)
    assert subset.base is not None
    first, base = subset.members[0], subset.base
    for other in subset.members:
        for key, called in (("delta", "shared weights"), ("base", "base models"), ("prompt_tokens", "prompt tokens")):
            one, another = (str(member.content[KEY][key])[:12] for member in (first, other))
            if first.content[KEY][key] != other.content[KEY][key]:
                raise IncompatibleError(
                    f"{first.version.ref} and {other.version.ref} are experts of different trainings: their {called} "
                    f"are {one} and {another}",
                    "compose experts of one reg train-simoe",
                )
    trained_from, weights = str(first.content[KEY]["base"]), str(base.content["weights"])
    if trained_from != weights:
        raise IncompatibleError(
            f"{first.version.ref} was trained from a base model of weights {trained_from[:12]}, and {base.version.ref} "
            f"has {weights[:12]}",
            "name the base model that it was trained from: --base NAME[@V]",
        )
    dtype = recipe.dtype or str(base.content["dtype"])
    opened, host = _opened(subset.members, base), f"{SIMOE}{base.family.model_type}"
    tensors = tuple(_tensors(subset.members, base, recipe.dtype, opened))
    return Plan(recipe, subset.members, base, base, dtype, host, "SimoeForCausalLM", tensors, opened)


def check_trained(members: Sequence[Member]) -> None:
    """Raise IncompatibleError unless members are experts of a SIMoE."""
    for member in members:
        if KEY not in member.content:
            raise IncompatibleError(
                f"{member.version.ref} was not trained with others as one SIMoE: it has no mask",
                "train such experts: reg train-simoe NAME --base B --data FILE; or choose another --to",
            )


def base_of(workspace: Workspace, members: Sequence[Member]) -> VersionRecord:
    """Return the registered base model that the first of some members was trained from.

    Raises:
        IncompatibleError: none is registered here, or a member is no expert of a SIMoE.
        InvalidInputError: there is no member, or several base models of different content have these weights.
    """
    check_trained(members)
    if not members:
        raise InvalidInputError("a composition needs at least one expert", "name some: --experts code,math")
    first = min(members, key=lambda member: member.name)
    weights = str(first.content[KEY]["base"])
    found = [one for one in workspace.versions(kind="base") if (one.content or {}).get("weights") == weights]
    if not found:
        raise IncompatibleError(
            f"{first.version.ref} was trained from a base model of weights {weights[:12]}, and none is registered here",
            "register it: reg add-base NAME CKPT",
        )
    if len({(one.name, one.digest) for one in found}) > 1:
        listed = ", ".join(sorted(one.ref for one in found))
        raise InvalidInputError(
            f"several base models have the weights that {first.version.ref} was trained from: {listed}",
            f"name one: --base {min(one.ref for one in found)}",
        )
    return found[-1]
