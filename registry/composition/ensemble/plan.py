"""Ensembles: all members of a subset as whole dense models in one folder, their next-token distributions mixed."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from registry.checkpoint import COPIED_FILES
from registry.composition.cards.ensemble import ensemble_card
from registry.composition.cards.parts import licenses_of
from registry.composition.compatibility import check_compatible, leading
from registry.composition.render import copied, span
from registry.errors import IncompatibleError, InvalidInputError
from registry.hosts import RowSelection
from registry.hosts.host import dense_config
from registry.hosts.remote_code import ENSEMBLE, ENSEMBLE_MODULE, ensemble_code
from registry.io.dtypes import WEIGHT_DTYPES
from registry.io.model_folder import MARKER, fresh_folder, json_file, write_files, write_weights
from registry.io.safetensors_writer import Span, Stream
from registry.io.schema import NUMBER, NUMBERS, TEXT, WHOLE, check_written, fields, maybe
from registry.member import Member
from registry.progress import Progress
from store.arrays import CHUNK_ELEMENTS, Block
from store.catalog.records import Role
from store.digest import json_digest

TO_ENSEMBLE = "ensemble"
"""What a composition's document says it was composed to."""

POSTERIOR, PERPLEXITY, TASK_VECTOR = "posterior", "perplexity", "task-vector"
ROUTINGS = {
    POSTERIOR: "p(expert | text so far) by Bayes' rule (Branch-Train-Merge, section 2)",
    PERPLEXITY: "softmax of the negative perplexity on the text so far (MergeME, section 3.1.3)",
    TASK_VECTOR: "softmax of the cosine between the base model's negative gradient on the first tokens and the task "
    "vector (MergeME, section 3.1.3)",
}
"""Routing method → where its weights come from."""

DOCUMENT_FORMAT = 1
_KINDS = {"to": TEXT, "routing": TEXT, "top_k": WHOLE, "temperature": NUMBER, "weights": maybe(NUMBERS)}
_KINDS |= {"routing_tokens": maybe(WHOLE), "dtype": maybe(TEXT)}


@dataclass(frozen=True)
class EnsembleRecipe:
    """Routing method + its parameters.

    Attributes:
        routing: a key of `ROUTINGS`.
        top_k: members kept per token, their weights renormalised, from 1 to the number of members; None for all.
        temperature: > 0; divides log likelihoods (`posterior`), perplexities or cosines before the softmax.
        weights: member name → ω > 0, of which its prior is the share; 1 where absent; with `posterior` alone.
        routing_tokens: with `task-vector`, how many first tokens decide, 2 or more; before there are so many, all
            members count alike.
        dtype: what the folder is written in, or None for the members' own.
    """

    routing: str = POSTERIOR
    top_k: int | None = None
    temperature: float = 1.0
    weights: Mapping[str, float] = field(default_factory=dict)
    routing_tokens: int = 32
    dtype: str | None = None

    def __post_init__(self) -> None:
        if self.routing not in ROUTINGS:
            raise InvalidInputError(
                f"routing method {self.routing!r} is none of {', '.join(ROUTINGS)}",
                f"choose one of them: routing={POSTERIOR!r}",
            )
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise InvalidInputError(
                f"temperature is {self.temperature}, it must be finite and more than 0", "the default is 1.0"
            )
        if self.routing_tokens < 2:
            raise InvalidInputError(
                f"routing-tokens is {self.routing_tokens}, it must be 2 or more: the first token is given",
                "the default is 32",
            )
        if self.weights and self.routing != POSTERIOR:
            raise InvalidInputError(
                f"there are weights, and routing {self.routing!r} knows no prior", f"drop them, or use {POSTERIOR!r}"
            )
        for name, weight in self.weights.items():
            if not (math.isfinite(weight) and weight > 0):
                raise InvalidInputError(
                    f"the weight of {name} is {weight}, it must be finite and more than 0", "the default is 1"
                )
        if self.dtype is not None and self.dtype not in WEIGHT_DTYPES:
            raise InvalidInputError(
                f"dtype {self.dtype!r} is none of {', '.join(WEIGHT_DTYPES)}", "choose one of them: --dtype bfloat16"
            )

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"routing {self.routing!r}"

    @property
    def needs_base(self) -> bool:
        """The base model takes part."""
        return self.routing == TASK_VECTOR

    @classmethod
    def from_document(cls, document: object, names: Sequence[str]) -> "EnsembleRecipe":
        """Return the recipe whose `document` this is, of members of these names (errors as `Recipe.from_document`)."""
        given = fields(document, _KINDS, "the recipe")
        asked = {key: value for key, value in given.items() if key != "to" and value is not None}
        recipe = cls(**asked)
        check_written(given, recipe.document(names), "the recipe")
        return recipe

    def check_members(self, names: Sequence[str]) -> None:
        """Check the recipe against the members' names.

        Raises:
            InvalidInputError: a weight is for no member, or top_k is out of range.
        """
        if strangers := sorted(set(self.weights) - set(names)):
            raise InvalidInputError(
                f"there is a weight for {', '.join(strangers)}, which is no member", f"members are: {', '.join(names)}"
            )
        if self.top_k is not None and not 1 <= self.top_k <= len(names):
            raise InvalidInputError(
                f"top-k is {self.top_k}, it must be from 1 to {len(names)}, the number of members",
                f"give --top-k {len(names)} or less, or name more --experts",
            )

    def document(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the recipe as `composition.json` holds it, every default spelled out; null where it has no part."""
        weights = {name: float(self.weights.get(name, 1.0)) for name in names}
        return {
            "to": TO_ENSEMBLE,
            "routing": self.routing,
            "top_k": len(names) if self.top_k is None else self.top_k,
            "temperature": float(self.temperature),
            "weights": weights if self.routing == POSTERIOR else None,
            "routing_tokens": self.routing_tokens if self.routing == TASK_VECTOR else None,
            "dtype": self.dtype,
        }


@dataclass(frozen=True)
class EnsembleTensor:
    """One tensor of the folder: its name there, and whose array it is."""

    name: str
    owner: Member
    role: Role
    array: str
    dtype: str

    def stream(self) -> Stream:
        """Return it as it is written."""
        shape = self.owner.link(self.role, self.array).shape
        own = (self.owner, self.role, self.array, self.dtype)
        return Stream(self.name, self.dtype, shape, partial(_blocks, *own), partial(_spans, *own))


@dataclass(frozen=True)
class Ensemble:
    """An ensemble to be, before a byte of it is written.

    Attributes:
        members: in name order.
        base: the base model, where the routing needs it.
        recipe: how they are weighed.
        dtype: what config.json says of the weights.
        lead: whose tokenizer and settings the folder takes over.
        shared: tensor → for each member, and the base model last, the number of the one whose tensor it uses; only
            tensors that some share.
        tensors: every tensor that is stored.
    """

    members: tuple[Member, ...]
    base: Member | None
    recipe: EnsembleRecipe
    dtype: str
    lead: Member
    shared: Mapping[str, list[int]]
    tensors: tuple[EnsembleTensor, ...]

    @property
    def names(self) -> list[str]:
        """The members' names, in order."""
        return [member.name for member in self.members]

    @property
    def model_type(self) -> str:
        """The `model_type` written to config.json."""
        return f"{ENSEMBLE}{self.lead.family.model_type}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of the result."""
        return ("load it with trust_remote_code=True: the folder carries its modelling file",)

    @cached_property
    def streams(self) -> list[Stream]:
        """Every tensor as it is written."""
        return [tensor.stream() for tensor in self.tensors]

    @property
    def parameters(self) -> int:
        """Weights that are stored: what members share counts once."""
        return sum(math.prod(stream.shape) for stream in self.streams)

    @property
    def active_parameters(self) -> int:
        """Weights that take part in one token: all members', or with `task-vector` at most those of top_k."""
        if self.recipe.routing != TASK_VECTOR:
            return self.parameters
        one = sum(math.prod(link.shape) for link in self.lead.arrays if link.role in ("trunk", "mlp"))
        return min(self.parameters, one * int(self.recipe.document(self.names)["top_k"]))

    @property
    def nbytes(self) -> int:
        """Bytes of weights that will be written."""
        return sum(stream.nbytes for stream in self.streams)

    @property
    def peak_bytes(self) -> int:
        """An upper estimate of the memory that writing takes: one block as read, as decoded and as rounded."""
        return 3 * 8 * max(min(CHUNK_ELEMENTS, math.prod(stream.shape)) for stream in self.streams)

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
    def config(self) -> dict[str, Any]:
        """config.json: the lead's own, the members and how they are weighed."""
        recipe = self.recipe.document(self.names)
        weights = recipe["weights"]
        return {
            **dense_config(json.loads(self.lead.file("config.json"))),
            "architectures": ["EnsembleForCausalLM"],
            "auto_map": {
                "AutoConfig": f"{ENSEMBLE_MODULE}.EnsembleConfig",
                "AutoModelForCausalLM": f"{ENSEMBLE_MODULE}.EnsembleForCausalLM",
            },
            "model_type": self.model_type,
            "dtype": self.dtype,
            "torch_dtype": self.dtype,
            **self.lead.content["special_tokens"],
            "members": self.names,
            "routing": self.recipe.routing,
            # `top_k` and `temperature` would be taken for settings of generation.
            "routing_prior": weights and [weight / sum(weights.values()) for weight in weights.values()],
            "routing_temperature": recipe["temperature"],
            "routing_tokens": recipe["routing_tokens"],
            "routing_top_k": recipe["top_k"],
            "shared_tensors": dict(self.shared),
            "vocab_size": self.lead.architecture.vocab_size,
        }

    @property
    def files(self) -> dict[str, bytes]:
        """What the folder holds beside the weights and `composition.json`."""
        copied = {name: self.lead.file(name) for name in self.lead.names("file") if name in COPIED_FILES}
        card = ensemble_card(
            self.document | {"digest": self.digest},
            licenses=[member.content["license"] for member in self.members],
            rolled=licenses_of(self.members, self.base),
            routing=ROUTINGS[self.recipe.routing],
            parameters=self.parameters,
            dtype=self.dtype,
        )
        made = {"config.json": json_file(self.config), "README.md": card}
        return copied | ensemble_code(self.lead.family.class_name) | made


def make_ensemble(members: Sequence[Member], base: Member | None, recipe: EnsembleRecipe) -> Ensemble:
    """Return the ensemble of `members` (in any order) by `recipe`.

    Args:
        members: active versions of different experts.
        base: the base model; it takes part with the routing `task-vector` alone.
        recipe: how they are weighed.

    Raises:
        InvalidInputError: no member, a name twice, a recipe that does not fit them, or no base model where one is
            needed.
        IncompatibleError: members differ in what must agree; the message says in what, and who from whom.
    """
    ordered = tuple(sorted(members, key=lambda member: member.name))
    names = [member.name for member in ordered]
    if not ordered:
        raise InvalidInputError("a composition needs at least one expert", "name some: --experts code,math")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInputError(
            f"{', '.join(twice)} is named more than once: a composition holds one version of an expert",
            "name each once",
        )
    recipe.check_members(names)
    if recipe.routing != TASK_VECTOR:
        base = None
    elif base is None:
        raise InvalidInputError(
            f"routing {TASK_VECTOR!r} needs the base model that the members were fine-tuned from",
            "name it: --base NAME[@V]",
        )
    everyone = (*ordered, *([base] if base else []))
    check_compatible(everyone)
    lead = leading(everyone)
    _check_vocabularies(lead, everyone)
    shared, tensors = _tensors(everyone, base, recipe, lead)
    return Ensemble(ordered, base, recipe, recipe.dtype or _common_dtype(everyone), lead, shared, tensors)


def write_ensemble(
    ensemble: Ensemble, out: Path, *, replace: bool, record: Callable[[], None], progress: Progress
) -> None:
    """Write an ensemble to `out`, which appears whole or not at all.

    Args:
        ensemble: what to write.
        out: the folder; absent, empty, or with `replace` an earlier composition.
        replace: see `out`.
        record: called when everything is written, just before the folder appears; raising, it prevents that.
        progress: told of the bytes written.

    Raises:
        OutputError: `out` cannot be written to.
        StorageError: the disk is full or refuses.
        DamagedError: a member's array is not what was stored.
    """
    with fresh_folder(out, replace=replace, nbytes=ensemble.nbytes) as folder:
        with progress("composing", ensemble.nbytes, "B") as advance:
            digests = write_weights(folder, ensemble.streams, advance)
        digests |= write_files(folder, ensemble.files)
        write_files(folder, {MARKER: json_file(ensemble.document | {"digest": ensemble.digest, "files": digests})})
        record()


def _tensors(
    everyone: Sequence[Member], base: Member | None, recipe: EnsembleRecipe, lead: Member
) -> tuple[dict[str, list[int]], tuple[EnsembleTensor, ...]]:
    """Return who uses whose tensor where digests are equal, and the tensors to store."""
    family, architecture = lead.family, lead.architecture
    places = [f"members.{index}" for index in range(len(everyone) - (base is not None))]
    places += ["base"] * (base is not None)
    roles: dict[str, Role] = dict.fromkeys(family.trunk_shapes(architecture), "trunk")
    roles |= dict.fromkeys(family.mlp_shapes(architecture), "mlp")
    shared: dict[str, list[int]] = {}
    tensors = []
    for array, role in roles.items():
        name = family.renamed.get(array, array)
        links = [member.link(role, array) for member in everyone]
        digests = [link.digest for link in links]
        owners = [digests.index(digest) for digest in digests]
        if owners != list(range(len(everyone))):
            shared[name] = owners
        for owner in sorted(set(owners)):
            dtype = recipe.dtype or links[owner].dtype
            tensors.append(EnsembleTensor(f"{places[owner]}.{name}", everyone[owner], role, array, dtype))
    return shared, tuple(tensors)


def _blocks(member: Member, role: Role, name: str, dtype: str) -> Iterator[Block]:
    """Yield an array's own bytes, cast only where another dtype is wanted."""
    return copied(member.open(role, name), RowSelection(name), dtype)


def _spans(member: Member, role: Role, name: str, dtype: str) -> list[Span] | None:
    found = span(member.open(role, name), RowSelection(name), dtype)
    return None if found is None else [found]


def _check_vocabularies(lead: Member, everyone: Sequence[Member]) -> None:
    rows = lead.architecture.vocab_size
    for other in everyone:
        if other.architecture.vocab_size != rows:
            raise IncompatibleError(
                f"{lead.version.ref} and {other.version.ref} cannot stand in one ensemble: "
                f"vocab_size {rows} against {other.architecture.vocab_size}",
                "an ensemble mixes distributions over the same tokens: leave one of them out",
            )


def _common_dtype(everyone: Sequence[Member]) -> str:
    dtypes = {member.version.ref: str(member.content["dtype"]) for member in everyone}
    if len(set(dtypes.values())) > 1:
        listed = ", ".join(f"{ref} {dtype}" for ref, dtype in dtypes.items())
        raise IncompatibleError(
            f"the members' weights have different dtypes ({listed})", "choose one: --dtype bfloat16"
        )
    return next(iter(dtypes.values()))
