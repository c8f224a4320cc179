"""The plan of a composition, what would be written before a byte of it is, and the outputs, which make plans."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from registry.composition.method import Card, Target
from registry.composition.preview import Preview
from registry.composition.recipe.recipe import DOCUMENT_FORMAT, Recipe
from registry.io.dtypes import WEIGHT_DTYPES
from registry.io.safetensors_file import Stream
from registry.progress import Progress
from store.arrays import CARRIERS, CHUNK_ELEMENTS
from store.digest import json_digest

if TYPE_CHECKING:
    from registry.member import Member
    from registry.workspace import Workspace
    from store.catalog import VersionRecord

TRUNK, EXPERTS, ROUTER = "trunk", "experts", "routers"
"""Parts of a model, which are files of their own where it is large."""


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
        return tuple(self.made.shape)

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
    """A member that a composition would hardly use, two that it cannot tell apart, or one known by its chat
    template.
    """

    refs: tuple[str, ...]  # the versions
    figure: float  # the share that is too small or, of two members or of a template's tokens, too large
    reason: str  # the same in words
    remedy: str  # the option that mends it


@dataclass(frozen=True)
class RoutingCost:
    """Layers, channels and weights that routing by the text so far adds to a composition."""

    layers: int  # layers, of evidence and of head maps; 0 where a modelling file does by itself what they do
    maps: bool  # it has head maps, in the last layer or in a modelling file
    last: int  # number of the last layer
    channels: int  # channels of the residual stream
    window: float  # τ in tokens, 0 for the whole text so far: where the recipe asks for it, or the rope has no window
    parameters: int
    bytes: int  # their size


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
        return output_of(self.recipe)

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


class Output(Target):
    """A kind of model that is made of experts: the plan of its folder, and what its card, lists and pages say."""

    def takes_base(self, members: Sequence[Member], recipe: Recipe) -> bool:
        """Tell whether the base model is to be looked up for these members."""
        return recipe.needs_base

    def base_of(self, workspace: Workspace, members: Sequence[Member], base: str | None) -> str | None:
        """Return a reference to the members' base model; None for the only one registered.

        `base` is the reference that was given, if one was (IncompatibleError: none can be found).
        """
        return base

    @abstractmethod
    def plan(self, members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
        """Return the plan of composing members (in any order) by a recipe; no weight is read.

        Raises:
            InvalidInputError: the recipe does not fit them.
            IncompatibleError: members differ in what must agree; the message says in what, and who from whom.
        """

    def opened(self, plan: Plan, workspace: Workspace) -> AbstractContextManager[Source]:
        """Open what the tensors of a plan are made from, after whatever passes it needs.

        Raises:
            DamagedError: a stored array is damaged.
            InvalidInputError: a linear system cannot be solved.
        """
        return nullcontext(Source([tensor.stream() for tensor in plan.tensors]))

    @abstractmethod
    def config(self, plan: Plan) -> dict[str, Any]:
        """Return config.json."""

    def code(self, plan: Plan) -> Mapping[str, bytes]:
        """Return the modelling files of the folder, by name."""
        return {}

    def file_members(self, plan: Plan) -> Sequence[Member]:
        """Return the members whose settings of generation and special tokens the folder has."""
        return plan.members

    @abstractmethod
    def card(self, plan: Plan) -> Card:
        """Return what the model card says."""

    def notes(self, plan: Plan) -> Iterable[str]:
        """Return remarks on the result for its user."""
        return ["load it with trust_remote_code=True: the folder carries its modelling file"] if self.needs_code else []

    def active_parameters(self, plan: Plan) -> int:
        """Return the weights that take part in one token, at most."""
        return plan.parameters

    def peak_bytes(self, plan: Plan) -> int:
        """Return an upper estimate of the memory that writing takes beyond the program itself."""
        return plan.block_bytes

    # What is known before it is made.

    def warnings(self, plan: Plan) -> tuple[PlanWarning, ...]:
        """Return warnings from stored counts alone; none where they would need more, or much time."""
        return ()

    def preview(self, plan: Plan, progress: Progress) -> Preview:
        """Predict the routing, as `Registry.preview` does (InvalidInputError: it cannot be predicted)."""
        raise NotImplementedError(f"output {self.name} has no preview")

    def shares_of(self, plan: Plan, version: Member) -> dict[str, float]:
        """Return member → predicted share of another version's text (RegError: it cannot be predicted)."""
        return {}

    def routing_cost(self, plan: Plan) -> RoutingCost | None:
        """Return what its routing adds to a plan without it; None where it adds nothing of note."""
        return None

    def passes(self, recipe: Recipe) -> Sequence[tuple[str, str, bool]]:
        """Return each step that runs models before anything is written: label, words, and whether it is sure to run."""
        return ()

    def mask_overlaps(self, members: Sequence[Member]) -> tuple[tuple[str, str, float], ...]:
        """Return (name, name, overlap from 0 to 1) of every two members' masks (DamagedError: a mask is damaged)."""
        return ()


def output_of(recipe: Recipe) -> Output:
    """Return the output of a recipe."""
    return cast(Output, recipe.output)
