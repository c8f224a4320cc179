"""Ensembles of members that differ in family and size: each whole, of its own class, with its own trunk."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from registry.composition.cards.parts import licenses_of
from registry.composition.compatibility import check_tokenizers, common_dtype, ordered_members
from registry.composition.taken_files import special_tokens, taken_files
from registry.errors import IncompatibleError
from registry.hosts.host import dense_config
from registry.hosts.remote_code import FAMILIES_ENSEMBLE, FAMILIES_MODULE, families_code
from registry.io.model_folder import json_file
from registry.member import Member
from registry.methods.ensemble.card import ensemble_card
from registry.methods.ensemble.plan import Ensemble, EnsembleTensor
from registry.methods.ensemble.recipe import POSTERIOR, ROUTINGS, TASK_VECTOR, EnsembleRecipe
from store.catalog.records import Role

CLASS_NAME = "FamiliesForCausalLM"

OF_WHOLE = ("architectures", "dtype", "torch_dtype")
"""Keys of a member's config.json that the whole folder has, with other values."""


@dataclass(frozen=True)
class FamiliesEnsemble(Ensemble):
    """An ensemble of members of several architectures, before a byte of it is written."""

    @property
    def model_type(self) -> str:
        """The `model_type` written to config.json."""
        return FAMILIES_ENSEMBLE

    @property
    def class_name(self) -> str:
        """The class in the modelling file."""
        return CLASS_NAME

    @property
    def active_parameters(self) -> int:
        """Weights that take part in one token: all members'; where the first tokens decide, of the largest top_k."""
        if not self.recipe.by_first_tokens:
            return self.parameters
        sizes = (sum(math.prod(link.shape) for link in m.arrays if link.role in ("trunk", "mlp")) for m in self.members)
        top_k = int(self.recipe.document(self.names)["top_k"])
        return min(self.parameters, sum(sorted(sizes, reverse=True)[:top_k]))

    @property
    def config(self) -> dict[str, Any]:
        """config.json: the lead's sizes, the configuration of each member, and how they are weighed."""
        recipe, lead = self.recipe.document(self.names), self.lead.architecture
        weights = recipe["weights"] if self.recipe.routing == POSTERIOR else None
        return {
            "architectures": [CLASS_NAME],
            "auto_map": {
                "AutoConfig": f"{FAMILIES_MODULE}.FamiliesConfig",
                "AutoModelForCausalLM": f"{FAMILIES_MODULE}.{CLASS_NAME}",
            },
            "model_type": self.model_type,
            "dtype": self.dtype,
            "torch_dtype": self.dtype,
            **special_tokens(self.members, self.lead),
            "hidden_size": lead.hidden_size,
            "num_attention_heads": lead.num_attention_heads,
            "num_hidden_layers": lead.num_hidden_layers,
            "max_position_embeddings": min(m.architecture.max_position_embeddings for m in self.members),
            "vocab_size": min(m.architecture.vocab_size for m in self.members),
            "use_cache": True,
            "tie_word_embeddings": False,  # each member's configuration says it
            "members": self.names,
            "member_configs": [own_config(member) for member in self.members],
            "routing": self.recipe.routing,
            # `top_k` and `temperature` would be taken for settings of generation.
            "routing_prior": weights and [weight / sum(weights.values()) for weight in weights.values()],
            "routing_temperature": recipe["temperature"],
            "routing_tokens": recipe["routing_tokens"],
            "routing_top_k": recipe["top_k"],
            "shared_tensors": dict(self.shared),
            "mixing": self.recipe.mixing,
        }

    @property
    def files(self) -> dict[str, bytes]:
        """Every file of the folder except the weights and `composition.json`."""
        card = ensemble_card(
            self.document | {"digest": self.digest},
            self.members,
            base=None,
            rolled=licenses_of(self.members, None),
            routing=ROUTINGS[self.recipe.routing],
            parameters=self.parameters,
            dtype=self.dtype,
            architecture=self.class_name,
        )
        made = {"config.json": json_file(self.config), "README.md": card}
        return taken_files(self.members, self.lead) | families_code() | made


def own_config(member: Member) -> dict[str, Any]:
    """Return the configuration of a member in a folder of several architectures."""
    given = dense_config(json.loads(member.file("config.json")))
    kept = {key: value for key, value in given.items() if key not in OF_WHOLE}
    own = member.architecture
    return kept | {
        "model_type": member.family.model_type,
        "tie_word_embeddings": own.tie_word_embeddings,
        "vocab_size": own.vocab_size,
    }


def make_families(members: Sequence[Member], recipe: EnsembleRecipe) -> FamiliesEnsemble:
    """Return the ensemble of `members` of several architectures (in any order) by `recipe`.

    Args:
        members: active versions of different experts.
        recipe: how they are weighed.

    Raises:
        InvalidInputError: a name twice, or a recipe that does not fit them.
        IncompatibleError: the recipe needs one architecture, or their tokens differ; the message says who and in what.
    """
    ordered = ordered_members(members, recipe)
    lead = max(ordered, key=lambda member: int(member.content["tokens"] or 0))
    other = next(m for m in ordered if m is not lead and _differ(m, lead))
    if recipe.routing == TASK_VECTOR or recipe.trunk is not None:
        user = f"trunk method {recipe.trunk!r}" if recipe.trunk else f"routing method {recipe.routing!r}"
        raise IncompatibleError(
            f"{user} goes from weight to weight, and those of {lead.version.ref} ({_described(lead)}) and "
            f"{other.version.ref} ({_described(other)}) have other shapes",
            "members of several architectures keep their trunks, and are weighed by what they predict: --routing "
            f"{POSTERIOR}, perplexity or prompt-perplexity",
        )
    for each in ordered:
        pair = f"{lead.version.ref} and {each.version.ref} cannot stand in one ensemble"
        check_tokenizers(lead, each, pair, known=True)
        known, rows = int(lead.content["tokens"] or 0), each.architecture.vocab_size
        if known > rows:
            raise IncompatibleError(
                f"{pair}: the tokenizer of {lead.version.ref} has {known:,} tokens, and {each.version.ref} predicts "
                f"{rows:,}",
                "an ensemble mixes distributions over the same tokens: leave one of them out",
            )
    shared, tensors = _shared(ordered), tuple(_tensors(ordered, recipe.dtype))
    dtype = recipe.dtype or common_dtype(ordered)
    return FamiliesEnsemble(ordered, None, recipe, dtype, lead, shared, tensors)


def _differ(one: Member, other: Member) -> bool:
    return one.family is not other.family or bool(one.architecture.differences(other.architecture))


def _described(member: Member) -> str:
    return f"{member.family.model_type}, hidden size {member.architecture.hidden_size}"


def _roles(member: Member) -> dict[str, Role]:
    """Return the tensors of a member with their roles."""
    family, architecture = member.family, member.architecture
    roles: dict[str, Role] = dict.fromkeys(family.trunk_shapes(architecture), "trunk")
    return roles | dict.fromkeys(family.mlp_shapes(architecture), "mlp")


def _owners(members: Sequence[Member]) -> Iterator[tuple[int, str, str, Role, int]]:
    """Yield number, name in the folder, array and role of each member's tensors, and the first that has the same."""
    first: dict[tuple[str, str], int] = {}
    for index, member in enumerate(members):
        for array, role in _roles(member).items():
            name = member.family.renamed.get(array, array)
            yield index, name, array, role, first.setdefault((name, member.link(role, array).digest), index)


def _shared(members: Sequence[Member]) -> dict[str, list[int]]:
    """Return the tensors that members share by equal digests → the number of the one whose tensor each uses."""
    shared: dict[str, list[int]] = {}
    for index, name, _, _, owner in _owners(members):
        if owner != index:
            shared.setdefault(name, list(range(len(members))))[index] = owner
    return shared


def _tensors(members: Sequence[Member], dtype: str | None) -> Iterator[EnsembleTensor]:
    """Yield the tensors to store: each once."""
    for index, name, array, role, owner in _owners(members):
        if owner == index:
            own = dtype or members[index].link(role, array).dtype
            yield EnsembleTensor(f"members.{index}.{name}", members[index], role, array, own)
