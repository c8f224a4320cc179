"""Ensembles: all members of a subset as whole dense models in one folder, their next-token distributions mixed."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

from registry.composition.cards.parts import licenses_of
from registry.composition.compatibility import Subset, common_dtype, make_subset
from registry.composition.plan import Plan
from registry.composition.taken_files import special_tokens, taken_files, taken_notes
from registry.errors import IncompatibleError
from registry.hosts import RowSelection
from registry.hosts.host import dense_config
from registry.hosts.remote_code import ENSEMBLE, ENSEMBLE_MODULE, MIXED_MODULE, ensemble_code, mixed_code
from registry.io.model_folder import json_file
from registry.io.safetensors_writer import Span, Stream
from registry.member import Member
from registry.methods.ensemble.card import ensemble_card
from registry.methods.ensemble.merged_trunk import OWNER, merged_trunk
from registry.methods.ensemble.recipe import POSTERIOR, ROUTINGS, EnsembleRecipe
from registry.methods.moe.model_writer import streams_of
from registry.methods.moe.render import copied, span
from registry.methods.moe.tensor_source import TensorSource
from store.arrays import CARRIERS, CHUNK_ELEMENTS, Block
from store.catalog.records import Role
from store.digest import json_digest

DOCUMENT_FORMAT = 1


class SizedTensor(Protocol):
    """A tensor of the folder, as far as its size goes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""


@dataclass(frozen=True)
class EnsembleTensor:
    """One tensor of the folder that is an array of a version: its name there, and whose array it is."""

    name: str
    owner: Member
    role: Role
    array: str
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.owner.link(self.role, self.array).shape

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * CARRIERS[self.dtype][1]

    def stream(self) -> Stream:
        """Return it as it is written."""
        own = (self.owner, self.role, self.array, self.dtype)
        return Stream(self.name, self.dtype, self.shape, partial(_blocks, *own), partial(_spans, *own))


@dataclass(frozen=True)
class Ensemble:
    """An ensemble to be, before a byte of it is written.

    Attributes:
        members: in name order.
        base: the base model, where the routing or the trunk needs it.
        recipe: how they are weighed.
        dtype: what config.json says of the weights.
        lead: whose tokenizer and settings the folder takes over.
        shared: tensor → for each member, and the base model last, the number of the one whose tensor it uses; only
            tensors that some share.
        tensors: every tensor that is stored as it is in a version.
        trunk: the plan of the trunk that the members share; None where each keeps its own.
    """

    members: tuple[Member, ...]
    base: Member | None
    recipe: EnsembleRecipe
    dtype: str
    lead: Member
    shared: Mapping[str, list[int]]
    tensors: tuple[EnsembleTensor, ...]
    trunk: Plan | None = None

    @property
    def names(self) -> list[str]:
        """The members' names, in order."""
        return [member.name for member in self.members]

    @property
    def model_type(self) -> str:
        """The `model_type` written to config.json."""
        return f"{ENSEMBLE}{self.lead.family.model_type}"

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the result for its user."""
        code = "load it with trust_remote_code=True: the folder carries its modelling file"
        return (code, *taken_notes(self.members, self.lead))

    def streams(self, trunk: TensorSource | None) -> list[Stream]:
        """Return every tensor as it is written.

        Args:
            trunk: the tensors of the shared trunk, of the plan `trunk`; None where there is none.
        """
        return [*([] if trunk is None else streams_of(trunk)), *(tensor.stream() for tensor in self.tensors)]

    @property
    def _stored(self) -> Sequence[SizedTensor]:
        """Every tensor of the folder."""
        return [*(self.trunk.tensors if self.trunk else ()), *self.tensors]

    @property
    def parameters(self) -> int:
        """Weights that are stored: what members share counts once."""
        return sum(math.prod(tensor.shape) for tensor in self._stored)

    @property
    def active_parameters(self) -> int:
        """Weights that take part in one token: all members'; where the first tokens decide, at most those of top_k.

        A tensor that all members share counts once.
        """
        if not self.recipe.by_first_tokens:
            return self.parameters
        renamed, top_k = self.lead.family.renamed, int(self.recipe.document(self.names)["top_k"])
        common = {name for name, owners in self.shared.items() if len({*owners[: len(self.members)]}) == 1}
        active = sum(
            math.prod(link.shape) * (1 if renamed.get(link.name, link.name) in common else top_k)
            for link in self.lead.arrays
            if link.role in ("trunk", "mlp")
        )
        return min(self.parameters, active)

    @property
    def nbytes(self) -> int:
        """Bytes of weights that will be written."""
        return sum(tensor.nbytes for tensor in self._stored)

    @property
    def peak_bytes(self) -> int:
        """An upper estimate of the memory that writing takes: one block as read, as decoded and as rounded.

        Where a shared trunk is computed, as much as that takes on one thread, if it is more.
        """
        blocks = 3 * 8 * max(min(CHUNK_ELEMENTS, math.prod(tensor.shape)) for tensor in self._stored)
        return blocks if self.trunk is None else max(blocks, self.trunk.rendering_bytes)

    @cached_property
    def document(self) -> dict[str, Any]:
        """Recipe, names and content digests: all that the ensemble is a function of."""
        return {
            "format": DOCUMENT_FORMAT,
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
    def class_name(self) -> str:
        """The class in the modelling file."""
        return "MixedEnsembleForCausalLM" if self.recipe.mixes else "EnsembleForCausalLM"

    @property
    def config(self) -> dict[str, Any]:
        """config.json: the lead's own, the members and how they are weighed."""
        recipe = self.recipe.document(self.names)
        weights = recipe["weights"] if self.recipe.routing == POSTERIOR else None
        module = MIXED_MODULE if self.recipe.mixes else ENSEMBLE_MODULE
        return {
            **dense_config(json.loads(self.lead.file("config.json"))),
            "architectures": [self.class_name],
            "auto_map": {
                "AutoConfig": f"{module}.EnsembleConfig",
                "AutoModelForCausalLM": f"{module}.{self.class_name}",
            },
            "model_type": self.model_type,
            "dtype": self.dtype,
            "torch_dtype": self.dtype,
            **special_tokens(self.members, self.lead),
            "members": self.names,
            "routing": self.recipe.routing,
            # `top_k` and `temperature` would be taken for settings of generation.
            "routing_prior": weights and [weight / sum(weights.values()) for weight in weights.values()],
            "routing_temperature": recipe["temperature"],
            "routing_tokens": recipe["routing_tokens"],
            "routing_top_k": recipe["top_k"],
            "shared_tensors": dict(self.shared),
            **({"mixing": self.recipe.mixing} if self.recipe.mixes else {}),
            "vocab_size": self.lead.architecture.vocab_size,
        }

    @property
    def files(self) -> dict[str, bytes]:
        """Every file of the folder except the weights and `composition.json`."""
        card = ensemble_card(
            self.document | {"digest": self.digest},
            self.members,
            base=self.base,
            rolled=licenses_of(self.members, self.base),
            routing=ROUTINGS[self.recipe.routing],
            parameters=self.parameters,
            dtype=self.dtype,
            architecture=self.class_name,
        )
        code = mixed_code if self.recipe.mixes else ensemble_code
        made = {"config.json": json_file(self.config), "README.md": card}
        return taken_files(self.members, self.lead) | code(self.lead.family.class_name) | made


def make_ensemble(members: Sequence[Member], base: Member | None, recipe: EnsembleRecipe) -> Ensemble:
    """Return the ensemble of `members` (in any order) by `recipe`.

    Args:
        members: active versions of different experts.
        base: the base model; it takes part with the routing `task-vector`, and where a shared trunk needs it.
        recipe: how they are weighed.

    Raises:
        InvalidInputError: no member, a name twice, a recipe that does not fit them, or no base model where one is
            needed.
        IncompatibleError: members differ in what must agree; the message says in what, and who from whom.
    """
    subset = make_subset(members, base, recipe)
    _check_vocabularies(subset, recipe)
    dtype = recipe.dtype or common_dtype(subset.everyone)
    trunk = merged_trunk(subset, recipe, dtype)
    shared, tensors = _tensors(subset, recipe)
    return Ensemble(subset.members, subset.base, recipe, dtype, subset.lead, shared, tensors, trunk)


def _tensors(subset: Subset, recipe: EnsembleRecipe) -> tuple[dict[str, list[int]], tuple[EnsembleTensor, ...]]:
    """Return who uses whose tensor, by equal digests or because a trunk is shared, and the versions' own to store."""
    family, architecture = subset.lead.family, subset.lead.architecture
    everyone = subset.everyone if recipe.has_base else subset.members
    count = len(subset.members)
    prefixes = [f"members.{index}" for index in range(count)] + ["base"] * recipe.has_base
    roles: dict[str, Role] = dict.fromkeys(family.trunk_shapes(architecture), "trunk")
    roles |= dict.fromkeys(family.mlp_shapes(architecture), "mlp")
    shared: dict[str, list[int]] = {}
    tensors = []
    for array, role in roles.items():
        name = family.renamed.get(array, array)
        if recipe.trunk is not None and role == "trunk":
            owners = [OWNER] * count
            if recipe.has_base and recipe.trunk == "base":
                owners.append(OWNER)  # its rows are the base model's to the bit
            elif recipe.has_base:
                owners.append(count)
                dtype = recipe.dtype or everyone[-1].link(role, array).dtype
                tensors.append(EnsembleTensor(f"{prefixes[-1]}.{name}", everyone[-1], role, array, dtype))
            if owners != list(range(len(everyone))):
                shared[name] = owners
            continue
        links = [member.link(role, array) for member in everyone]
        digests = [link.digest for link in links]
        owners = [digests.index(digest) for digest in digests]
        if owners != list(range(len(everyone))):
            shared[name] = owners
        for owner in sorted(set(owners)):
            dtype = recipe.dtype or links[owner].dtype
            tensors.append(EnsembleTensor(f"{prefixes[owner]}.{name}", everyone[owner], role, array, dtype))
    return shared, tuple(tensors)


def _blocks(member: Member, role: Role, name: str, dtype: str) -> Iterator[Block]:
    """Yield an array's own bytes, cast only where another dtype is wanted."""
    return copied(member.open(role, name), RowSelection(name), dtype)


def _spans(member: Member, role: Role, name: str, dtype: str) -> list[Span] | None:
    one = span(member.open(role, name), RowSelection(name), dtype)
    return None if one is None else [one]


def _check_vocabularies(subset: Subset, recipe: EnsembleRecipe) -> None:
    """Check that all distributions are over the same tokens.

    Members that share a trunk have one embedding and one head, with a row for every token that any of them knows.

    Raises:
        IncompatibleError: a whole model of the folder has fewer tokens than the others.
    """
    lead, rows = subset.lead, subset.lead.architecture.vocab_size
    whole = subset.everyone
    if recipe.trunk is not None:
        widest = max(subset.members, key=lambda member: member.architecture.vocab_size)
        whole = (widest, *([subset.base] if subset.base and recipe.has_base else []))
    for other in whole if recipe.trunk is None or recipe.has_base else ():
        if other.architecture.vocab_size != rows:
            raise IncompatibleError(
                f"{lead.version.ref} and {other.version.ref} cannot stand in one ensemble: "
                f"vocab_size {rows} against {other.architecture.vocab_size}",
                "an ensemble mixes distributions over the same tokens: leave one of them out"
                if recipe.trunk is None
                else "choose another --routing, such as prompt-perplexity, which does not run the base model",
            )
