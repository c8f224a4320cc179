"""What a composition will be, before a byte of it is written: members, host, every tensor and how it is made."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from registry.architecture import Architecture
from registry.composing.member import Member
from registry.composing.recipe import Recipe
from registry.errors import IncompatibleError, InvalidInputError
from registry.families import PROJECTIONS
from registry.hosts import Host
from registry.maths.trunk import TRUNKS
from store.arrays import CARRIERS, CHUNK_ELEMENTS
from store.digest import json_digest

DOCUMENT_FORMAT = 1


@dataclass(frozen=True)
class Copied:
    """One member's MLP matrix: the bytes of its array, cast only where the recipe asks for another dtype."""

    member: int
    name: str


@dataclass(frozen=True)
class Combined:
    """A trunk tensor, made by the trunk method from the members' (and the base model's) tensors of this name."""

    name: str


@dataclass(frozen=True)
class Routed:
    """The router of one layer, made by the router method from the members' statistics."""

    layer: int


@dataclass(frozen=True)
class OutputTensor:
    """One tensor of the folder: its host name, dtype and shape, and how it is made."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    made: Copied | Combined | Routed

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * CARRIERS[self.dtype][1]


@dataclass(frozen=True)
class Plan:
    """A composition to be.

    Attributes:
        members: in name order, which is the order of the experts.
        base: the base model, where the trunk method needs it.
        recipe: how they are combined.
        dtype: what config.json says of the weights.
        tensors: every tensor, layer by layer.
    """

    members: tuple[Member, ...]
    base: Member | None
    recipe: Recipe
    dtype: str
    tensors: tuple[OutputTensor, ...]

    @property
    def host(self) -> Host:
        """The native architecture that will carry it."""
        return self.members[0].family.host

    @property
    def architecture(self) -> Architecture:
        """The members' common architecture."""
        return self.members[0].architecture

    @property
    def names(self) -> list[str]:
        """The members' names, in order."""
        return [member.version.name for member in self.members]

    @property
    def parameters(self) -> int:
        """Weights in all."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def active_parameters(self) -> int:
        """Weights that take part in one token: the trunk, the routers and top_k experts."""
        experts = sum(math.prod(tensor.shape) for tensor in self.tensors if isinstance(tensor.made, Copied))
        return self.parameters - experts + experts // len(self.members) * self.recipe.top_k

    @property
    def nbytes(self) -> int:
        """Bytes of weights that will be written."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def peak_bytes(self) -> int:
        """An upper estimate of the memory that composing takes beyond the program itself.

        One layer's Gram workspace (seven matrices of 8-byte numbers: as read, as decoded, as integers of two members,
        as reals, their sum and its factor) and one block of a tensor (in float64, widened and rounded, beside what each
        member contributes, as read and as decoded). Both count: what one frees is not always there for the other.
        """
        gram = 7 * 8 * (self.architecture.hidden_size + 1) ** 2
        elements = min(CHUNK_ELEMENTS, max(math.prod(tensor.shape) for tensor in self.tensors))
        contributed = 2 * CARRIERS[self.dtype][1] * (len(self.members) + (self.base is not None))
        return gram + (3 * 8 + contributed) * elements

    @property
    def document(self) -> dict[str, Any]:
        """Recipe, names and content digests: all that the composition is a function of."""
        return {
            "format": DOCUMENT_FORMAT,
            "host": self.host.model_type,
            "recipe": self.recipe.document(self.names),
            "members": [{"name": m.version.name, "digest": m.version.digest} for m in self.members],
            "base": None if self.base is None else {"name": self.base.version.name, "digest": self.base.version.digest},
        }

    @property
    def digest(self) -> str:
        """The composition's digest."""
        return json_digest(self.document)


def make_plan(members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
    """Return the plan of composing `members` (in any order) by `recipe`.

    Args:
        members: active versions of different experts.
        base: the base model where `recipe.trunk` needs one; it takes no part otherwise.
        recipe: how.

    Raises:
        InvalidInputError: no member, a name twice, or a recipe that does not fit them.
        IncompatibleError: members differ in what must agree; the message says in what, and who from whom.
    """
    ordered = tuple(sorted(members, key=lambda member: member.version.name))
    if not ordered:
        raise InvalidInputError("a composition needs at least one expert", "name some: --experts code,math")
    names = [member.version.name for member in ordered]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInputError(
            f"{', '.join(twice)} is named more than once: a composition holds one version of an expert",
            "name each once",
        )
    recipe.check_members(names)
    base = base if TRUNKS[recipe.trunk].needs_base else None
    first = ordered[0]
    for other in (*ordered[1:], *([base] if base else [])):
        _check_compatible(first, other)
    dtype = recipe.dtype or _common_dtype(ordered)
    return Plan(ordered, base, recipe, dtype, tuple(_tensors(ordered, base, recipe, dtype)))


def _check_compatible(first: Member, other: Member) -> None:
    pair = f"{first.version.ref} and {other.version.ref} cannot stand in one composition"
    if first.family is not other.family:
        raise IncompatibleError(
            f"{pair}: family {first.family.model_type} against {other.family.model_type}",
            "compose experts of one family",
        )
    if differences := first.architecture.differences(other.architecture):
        raise IncompatibleError(f"{pair}: {'; '.join(differences)}", "compose experts of one base model")
    if first.content["tokenizer"] != other.content["tokenizer"]:
        raise IncompatibleError(
            f"{pair}: their tokenizers differ (digest {_short(first)} against {_short(other)})",
            "compose experts that kept their base model's tokenizer",
        )


def _short(member: Member) -> str:
    return str(member.content["tokenizer"])[:12]


def _common_dtype(members: Sequence[Member]) -> str:
    dtypes = {member.version.ref: str(member.content["dtype"]) for member in members}
    if len(set(dtypes.values())) > 1:
        listed = ", ".join(f"{ref} {dtype}" for ref, dtype in dtypes.items())
        raise IncompatibleError(
            f"the members' weights have different dtypes ({listed})", "choose one: --dtype bfloat16"
        )
    return next(iter(dtypes.values()))


def _tensors(members: Sequence[Member], base: Member | None, recipe: Recipe, dtype: str) -> list[OutputTensor]:
    first = members[0]
    family, architecture, host = first.family, first.architecture, first.family.host
    contributors = [*(members if TRUNKS[recipe.trunk].needs_members else ()), *([base] if base else [])]
    tensors = [
        OutputTensor(name, recipe.dtype or _tensor_dtype(contributors, name), shape, Combined(name))
        for name, shape in family.trunk_shapes(architecture).items()
    ]
    mlp = family.mlp_shapes(architecture)
    for layer in range(architecture.num_hidden_layers):
        shape = (len(members), architecture.hidden_size)
        tensors.append(OutputTensor(host.gate_name(layer), dtype, shape, Routed(layer)))
        for index, member in enumerate(members):
            for projection in PROJECTIONS:
                name = family.mlp_name(layer, projection)
                own = recipe.dtype or member.link("mlp", name).dtype
                tensors.append(
                    OutputTensor(host.expert_name(layer, index, projection), own, mlp[name], Copied(index, name))
                )
    return tensors


def _tensor_dtype(contributors: Sequence[Member], name: str) -> str:
    dtypes = {member.version.ref: member.link("trunk", name).dtype for member in contributors}
    if len(set(dtypes.values())) > 1:
        listed = ", ".join(f"{ref} {dtype}" for ref, dtype in dtypes.items())
        raise IncompatibleError(f"tensor {name} has different dtypes ({listed})", "choose one: --dtype bfloat16")
    return next(iter(dtypes.values()))
