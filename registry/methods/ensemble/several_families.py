"""Ensembles of members that differ in family and size: each whole, of its own class, with its own trunk."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from registry.composition.compatibility import check_tokenizers, common_dtype, ordered_members
from registry.composition.plan import OutputTensor, Plan, Stored
from registry.composition.recipe.recipe import Recipe
from registry.errors import IncompatibleError
from registry.hosts.remote_code import FAMILIES_ENSEMBLE, FAMILIES_MODULE, families_code
from registry.member import Member
from registry.methods.ensemble.plan import routing_config
from registry.methods.ensemble.routings import POSTERIOR, TASK_VECTOR
from registry.methods.whole_members import common_sizes, loading, own_config
from store.catalog.records import Role

CLASS_NAME = "FamiliesForCausalLM"


@dataclass(frozen=True)
class FamiliesParts:
    """What an ensemble keeps of its plan, with members of several architectures.

    Attributes:
        shared: tensor → for each member the number of the one whose tensor it uses; only tensors that some share.
    """

    shared: Mapping[str, list[int]]
    trunk: None = None

    def active_parameters(self, plan: Plan) -> int:
        """Return the weights of the largest top_k members, which run after the first tokens."""
        sizes = (sum(math.prod(link.shape) for link in m.arrays if link.role in ("trunk", "mlp")) for m in plan.members)
        top_k = int(plan.recipe.document(plan.names)["top_k"])
        return sum(sorted(sizes, reverse=True)[:top_k])

    def code(self, plan: Plan) -> Mapping[str, bytes]:
        """Return the modelling files."""
        return families_code()

    def config(self, plan: Plan) -> dict[str, Any]:
        """Return config.json: the lead's sizes, the configuration of each member, and how they are weighed."""
        return {
            **loading(plan, FAMILIES_MODULE, "FamiliesConfig"),
            **common_sizes(plan),
            "vocab_size": min(m.architecture.vocab_size for m in plan.members),
            "tie_word_embeddings": False,  # each member's configuration says it
            "member_configs": [own_config(member) for member in plan.members],
            **routing_config(plan),
            "shared_tensors": dict(self.shared),
            "mixing": plan.recipe.mixing,
        }


def make_families(members: Sequence[Member], recipe: Recipe) -> Plan:
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
    parts = FamiliesParts(shared)
    return Plan(recipe, ordered, None, lead, dtype, FAMILIES_ENSEMBLE, CLASS_NAME, tensors, parts)


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


def _tensors(members: Sequence[Member], dtype: str | None) -> Iterator[OutputTensor]:
    """Yield the tensors to store: each once."""
    for index, name, array, role, owner in _owners(members):
        if owner == index:
            own = dtype or members[index].link(role, array).dtype
            yield OutputTensor(f"members.{index}.{name}", own, Stored(members[index], role, array))
