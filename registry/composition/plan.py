"""The plan of a composition: what would be written, before a byte of it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any

from registry.composition.card import card_page
from registry.composition.manifest import DOCUMENT_FORMAT
from registry.composition.method import Output
from registry.composition.recipe.recipe import Recipe
from registry.composition.stored import held, stored_stream
from registry.composition.taken_files import taken_files
from registry.io.dtypes import WEIGHT_DTYPES
from registry.io.model_folder import json_file
from registry.io.safetensors_file import Stream
from registry.io.torch_blocks import to_block, torch_dtype
from registry.member import Member
from store.arrays import CARRIERS, CHUNK_ELEMENTS, Block
from store.catalog import VersionRecord
from store.catalog.records import Role
from store.digest import json_digest

TRUNK, EXPERTS, ROUTER = "trunk", "experts", "routers"
"""Parts of a model, which are files of their own where it is large."""


@dataclass(frozen=True)
class Stored:
    """An array of a version, by role and name, as it is stored; cast where another dtype is wanted."""

    member: Member
    role: Role
    array: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.member.link(self.role, self.array).shape

    def stream(self, name: str, dtype: str) -> Stream:
        """Return it as it is written."""
        return stored_stream(name, dtype, self.shape, partial(self.member.open, self.role, self.array), self.array)


@dataclass(frozen=True)
class Stacked:
    """An array of every member, one after the other along a new first axis."""

    members: tuple[Member, ...]
    role: Role
    array: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, (E, …)."""
        return (len(self.members), *self.members[0].link(self.role, self.array).shape)

    def stream(self, name: str, dtype: str) -> Stream:
        """Return it as it is written."""
        return Stream(name, dtype, self.shape, self._blocks)

    def _blocks(self) -> Iterator[Block]:
        for member in self.members:
            for block in member.open(self.role, self.array).blocks():
                yield block[None]


@dataclass(frozen=True)
class Computed:
    """A tensor that a function returns, whole.

    Attributes:
        compute: returns it as a torch tensor of any floating dtype.
    """

    shape: tuple[int, ...]
    compute: Callable[[], Any]

    def stream(self, name: str, dtype: str) -> Stream:
        """Return it as it is written."""

        def blocks() -> Iterator[Block]:
            yield from held([to_block(self.compute().to(torch_dtype(dtype)))], dtype, name)

        return Stream(name, dtype, self.shape, blocks)


@dataclass(frozen=True)
class OutputTensor:
    """One tensor of the folder.

    Attributes:
        made: how it is made: `Stored`, `Stacked`, `Computed`, or what its output alone understands.
        part: which part of the model it is.
    """

    name: str
    dtype: str
    made: Any
    part: str = TRUNK

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        shape: tuple[int, ...] = self.made.shape
        return shape

    @property
    def elements(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.elements * CARRIERS[self.dtype][1]

    def stream(self) -> Stream:
        """Return it as it is written, if it needs nothing but itself."""
        stream: Stream = self.made.stream(self.name, self.dtype)
        return stream


@dataclass(frozen=True)
class Source:
    """The tensors of a plan, ready to be written.

    Attributes:
        threads: how many threads may compute at the same time; each tensor is computed on one.
        in_tasks: a cluster may write the files, each in a task that plans the composition again.
    """

    streams: Sequence[Stream]
    threads: int = 1
    in_tasks: bool = False


@dataclass(frozen=True)
class PlanWarning:
    """A member that a composition would hardly use, two that it cannot tell apart, or one known by its chat template.

    Attributes:
        figure: the share that is too small or, of two members or of a template's tokens, too large.
        remedy: the option that mends it.
    """

    refs: tuple[str, ...]
    figure: float
    reason: str
    remedy: str


@dataclass(frozen=True)
class RoutingCost:
    """Layers, channels and weights that routing by the text so far adds to a composition.

    Attributes:
        layers: layers, of evidence and of head maps; 0 where a modelling file does by itself what they do.
        maps: it has head maps, in the last layer or in a modelling file.
        last: number of the last layer.
        channels: channels of the residual stream.
        window: τ in tokens, 0 for the whole text so far: where the recipe asks for it, or the rope has no window.
    """

    layers: int
    maps: bool
    last: int
    channels: int
    window: float
    parameters: int
    bytes: int

    def document(self) -> dict[str, Any]:
        """Return it as `--json` shows it."""
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """A composition to be.

    Attributes:
        members: in name order, which is the order of the experts.
        base: the base model, where it takes part.
        lead: the member whose tokenizer and settings the folder takes over.
        dtype: what config.json says of the weights.
        model_type: the `model_type` of config.json.
        class_name: the class of its model.
        parts: what the output keeps of it for itself.
    """

    recipe: Recipe
    members: tuple[Member, ...]
    base: Member | None
    lead: Member
    dtype: str
    model_type: str
    class_name: str
    tensors: tuple[OutputTensor, ...]
    parts: Any = None

    @property
    def output(self) -> Output:
        """The output that it makes."""
        return self.recipe.output

    @property
    def names(self) -> list[str]:
        """The members' names, in order."""
        return [member.name for member in self.members]

    @property
    def used(self) -> list[Member]:
        """The members, one of several copies, and the base model if it takes part and is no member."""
        used: dict[int, Member] = {}
        for member in (*self.members, *([self.base] if self.base else [])):
            used.setdefault(member.version.id, member)
        return list(used.values())

    @property
    def versions(self) -> list[VersionRecord]:
        """The versions that it reads."""
        return [member.version for member in self.used]

    @property
    def weights(self) -> list[float]:
        """ω of each member, in their order."""
        return [float(self.recipe.weights.get(name, 1.0)) for name in self.names]

    @property
    def coefficients(self) -> list[float]:
        """α of each member, in their order; empty where the recipe has none."""
        return [float(self.recipe.coefficients[name]) for name in self.names if self.recipe.coefficients]

    @property
    def from_base(self) -> int | None:
        """The number of members where they are copies of the base model; None where they are versions of their own."""
        return None if self.lead.copy is None else len(self.members)

    @property
    def parameters(self) -> int:
        """Weights in all; masks are none."""
        return sum(tensor.elements for tensor in self.tensors if tensor.dtype in WEIGHT_DTYPES)

    @property
    def active_parameters(self) -> int:
        """Weights that take part in one token, at most."""
        return self.output.active_parameters(self)

    @property
    def nbytes(self) -> int:
        """Bytes of weights that will be written."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def block_bytes(self) -> int:
        """An upper estimate of the memory that one block of a tensor takes as read, as decoded and as rounded."""
        return 3 * 8 * max(min(CHUNK_ELEMENTS, tensor.elements) for tensor in self.tensors)

    @property
    def peak_bytes(self) -> int:
        """An upper estimate of the memory that composing takes beyond the program itself."""
        return self.output.peak_bytes(self)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the result for its user."""
        return tuple(self.output.notes(self))

    @cached_property
    def document(self) -> dict[str, Any]:
        """Recipe, names and content digests: all that the composition is a function of."""
        return {
            "format": DOCUMENT_FORMAT,
            **({} if self.from_base is None else {"from_base": self.from_base}),
            "host": self.model_type,
            "recipe": self.recipe.document(self.names),
            "members": [{"name": m.name, "digest": m.version.digest} for m in self.members],
            "base": None if self.base is None else {"name": self.base.name, "digest": self.base.version.digest},
        }

    @property
    def digest(self) -> str:
        """The composition's digest."""
        return json_digest(self.document)

    @property
    def files(self) -> dict[str, bytes]:
        """Every file of the folder except the weights and `composition.json`."""
        config = {"config.json": json_file(self.output.config(self))}
        card = {"README.md": card_page(self, self.output.card(self))}
        return taken_files(self.output.file_members(self), self.lead) | dict(self.output.code(self)) | config | card


@contextmanager
def opened_stored(plan: Plan) -> Iterator[Source]:
    """Open a plan whose tensors need nothing but themselves."""
    yield Source([tensor.stream() for tensor in plan.tensors])
