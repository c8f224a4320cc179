"""SIMoEs: the base model, the shared weights D, and the masks and router rows of a subset of its experts in one folder.

Shapes: n members, R outputs of all linear layers of attention and MLPs, P = ⌈R / 8⌉, H hidden size.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from registry.checkpoint.simoe_files import DELTA, MASK, ROW
from registry.composition.cards.parts import licenses_of
from registry.composition.compatibility import make_subset
from registry.composition.taken_files import taken_files
from registry.errors import IncompatibleError, InvalidInputError
from registry.hosts import RowSelection
from registry.hosts.host import dense_config
from registry.hosts.remote_code import SIMOE, SIMOE_MODULE, simoe_code
from registry.io.model_folder import json_file
from registry.io.safetensors_writer import Span, Stream
from registry.member import Member
from registry.methods.moe.render import copied, span
from registry.methods.simoe.card import simoe_card
from registry.methods.simoe.recipe import SimoeRecipe
from registry.workspace import Workspace
from store.arrays import CHUNK_ELEMENTS, Block
from store.catalog import VersionRecord
from store.catalog.records import Role
from store.digest import json_digest

DOCUMENT_FORMAT = 1
CLASS_NAME = "SimoeForCausalLM"
MASKS, ROUTER, PROMPT_TOKENS = "masks", "router", "prompt_tokens"


@dataclass(frozen=True)
class SimoePlan:
    """A SIMoE to be, before a byte of it is written.

    Attributes:
        members: in name order.
        base: the base model that they were trained from, whose tokenizer and settings the folder takes over.
        recipe: the recipe.
    """

    members: tuple[Member, ...]
    base: Member
    recipe: SimoeRecipe

    @property
    def lead(self) -> Member:
        """The base model."""
        return self.base

    @property
    def names(self) -> list[str]:
        """The members' names, in order."""
        return [member.name for member in self.members]

    @property
    def model_type(self) -> str:
        """The `model_type` written to config.json."""
        return f"{SIMOE}{self.base.family.model_type}"

    @property
    def dtype(self) -> str:
        """The dtype of the weights in config.json."""
        return self.recipe.dtype or str(self.base.content["dtype"])

    @property
    def prompt_tokens(self) -> int:
        """First tokens of a sequence, which give the experts their weights."""
        return int(self.members[0].content["simoe"]["prompt_tokens"])

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the result for its user."""
        count = self.members[0].content["simoe"]["experts"]
        joint = f"its shared weights were trained by all {count} experts together, whichever of them are members"
        return ("load it with trust_remote_code=True: the folder carries its modelling file", joint)

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """The weights that have a D, in the order of the masks' bits."""
        return self.base.family.layer_matrices(self.base.architecture)

    @cached_property
    def streams(self) -> list[Stream]:
        """Every tensor as it is written."""
        renamed, base = self.base.family.renamed, self.base
        weights = [link for link in base.arrays if link.role in ("trunk", "mlp")]
        streams = [
            _stored(renamed.get(link.name, link.name), base, link.role, link.name, self.recipe) for link in weights
        ]
        for name in self.layers:
            module = renamed.get(name, name).removesuffix(".weight")
            streams.append(_stored(f"{module}.delta", self.members[0], "simoe", f"{DELTA}{name}", self.recipe))
        for name, array in ((MASKS, MASK), (ROUTER, ROW)):
            link = self.members[0].link("simoe", array)
            shape = (len(self.members), *link.shape)
            streams.append(Stream(name, link.dtype, shape, partial(_stacked, self.members, array)))
        return streams

    @property
    def parameters(self) -> int:
        """Weights that are stored; masks are none."""
        return sum(math.prod(stream.shape) for stream in self.streams if stream.name != MASKS)

    @property
    def active_parameters(self) -> int:
        """Weights that take part in one token: all, the base model's and as many shared ones as its linear layers'."""
        return self.parameters

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
        """Recipe, names and content digests: all that the SIMoE is a function of."""
        return {
            "format": DOCUMENT_FORMAT,
            "host": self.model_type,
            "recipe": self.recipe.document(self.names),
            "members": [{"name": m.name, "digest": m.version.digest} for m in self.members],
            "base": {"name": self.base.name, "digest": self.base.version.digest},
        }

    @property
    def digest(self) -> str:
        """The composition's digest."""
        return json_digest(self.document)

    @property
    def config(self) -> dict[str, Any]:
        """config.json: the base model's own, the members, and the layers that have a D."""
        renamed = self.base.family.renamed
        return {
            **dense_config(json.loads(self.base.file("config.json"))),
            "architectures": [CLASS_NAME],
            "auto_map": {
                "AutoConfig": f"{SIMOE_MODULE}.SimoeConfig",
                "AutoModelForCausalLM": f"{SIMOE_MODULE}.{CLASS_NAME}",
            },
            "model_type": self.model_type,
            "dtype": self.dtype,
            "torch_dtype": self.dtype,
            **self.base.content["special_tokens"],
            "interpolated_layers": [renamed.get(name, name).removesuffix(".weight") for name in self.layers],
            "members": self.names,
            PROMPT_TOKENS: self.prompt_tokens,
            "vocab_size": self.base.architecture.vocab_size,
        }

    @property
    def files(self) -> dict[str, bytes]:
        """Every file of the folder except the weights and `composition.json`."""
        card = simoe_card(
            self.document | {"digest": self.digest},
            self.members,
            self.base,
            rolled=licenses_of(self.members, self.base),
            parameters=self.parameters,
            dtype=self.dtype,
            architecture=CLASS_NAME,
        )
        made = {"config.json": json_file(self.config), "README.md": card}
        return taken_files((self.base,), self.base) | simoe_code(self.base.family.class_name) | made


def make_simoe(members: Sequence[Member], base: Member | None, recipe: SimoeRecipe) -> SimoePlan:
    """Return the SIMoE of `members` (in any order).

    Args:
        members: active versions of different experts.
        base: the base model that they were trained from.
        recipe: the recipe.

    Raises:
        InvalidInputError: no member, or a name twice.
        IncompatibleError: a member is no expert of a SIMoE, they are of several, or the base model is another.
    """
    check_trained(members)
    subset = make_subset(members, base, recipe)
    assert subset.base is not None
    first, base = subset.members[0], subset.base
    for other in subset.members:
        for key, called in (("delta", "shared weights"), ("base", "base models"), ("prompt_tokens", "prompt tokens")):
            one, another = (str(member.content["simoe"][key])[:12] for member in (first, other))
            if first.content["simoe"][key] != other.content["simoe"][key]:
                raise IncompatibleError(
                    f"{first.version.ref} and {other.version.ref} are experts of different trainings: their {called} "
                    f"are {one} and {another}",
                    "compose experts of one reg train-simoe",
                )
    trained_from, weights = str(first.content["simoe"]["base"]), str(base.content["weights"])
    if trained_from != weights:
        raise IncompatibleError(
            f"{first.version.ref} was trained from a base model of weights {trained_from[:12]}, and {base.version.ref} "
            f"has {weights[:12]}",
            "name the base model that it was trained from: --base NAME[@V]",
        )
    return SimoePlan(subset.members, base, recipe)


def check_trained(members: Sequence[Member]) -> None:
    """Check that members are experts of a SIMoE.

    Raises:
        IncompatibleError: one is not.
    """
    for member in members:
        if "simoe" not in member.content:
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
    weights = str(first.content["simoe"]["base"])
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


def _stored(name: str, owner: Member, role: Role, array: str, recipe: SimoeRecipe) -> Stream:
    link = owner.link(role, array)
    own = (owner, role, array, recipe.dtype or link.dtype)
    return Stream(name, own[-1], link.shape, partial(_blocks, *own), partial(_spans, *own))


def _blocks(member: Member, role: Role, name: str, dtype: str) -> Iterator[Block]:
    """Yield an array's own bytes, cast only where another dtype is wanted."""
    return copied(member.open(role, name), RowSelection(name), dtype)


def _spans(member: Member, role: Role, name: str, dtype: str) -> list[Span] | None:
    one = span(member.open(role, name), RowSelection(name), dtype)
    return None if one is None else [one]


def _stacked(members: Sequence[Member], array: str) -> Iterator[Block]:
    """Yield an array of every member, one after the other."""
    for member in members:
        for block in member.open("simoe", array).blocks():
            yield block[None]
