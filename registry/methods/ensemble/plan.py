"""Plans of ensembles: all members of a subset as whole dense models in one folder."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from registry.composition.compatibility import (
    Subset,
    check_tokenizers,
    common_dtype,
    differ_in_shape,
    make_subset,
    ordered_members,
)
from registry.composition.passes import pass_context
from registry.composition.plan import OutputTensor, Plan, Source
from registry.composition.recipe.recipe import Recipe
from registry.composition.stored import Stored
from registry.errors import IncompatibleError
from registry.hosts import RowSelection, Trunk
from registry.hosts.host import dense_config
from registry.hosts.remote_code import modelling_file
from registry.member import Member
from registry.methods.ensemble.host import ENSEMBLE, FAMILIES, FAMILIES_ENSEMBLE, MIXED, WHOLE
from registry.methods.ensemble.output import POSTERIOR, TASK_VECTOR, mixes, routing_of
from registry.methods.moe.checks import check_soups, check_statistics, takes_task_vectors
from registry.methods.moe.model_writer import rendering_threads, streams_of
from registry.methods.moe.passes import tensor_source_of
from registry.methods.moe.plan import trunk_dtype
from registry.methods.whole_members import common_sizes, loading, own_config
from registry.workspace import Workspace
from store.catalog.records import Role

OWNER = 0
"""The member under whose name a shared trunk is stored."""


@dataclass(frozen=True)
class EnsembleParts:
    """Parts of the plan of an ensemble whose members have one architecture.

    Attributes:
        shared: tensor → for each member, and the base model last, the number of the one whose tensor it uses; only
            tensors that some share.
        trunk: the plan of the trunk that the members share; None where each keeps its own.
    """

    shared: Mapping[str, list[int]]
    trunk: Plan | None = None

    def active_parameters(self, plan: Plan) -> int:
        """Return the weights of the top_k members that run after the first tokens; what all share counts once."""
        renamed, top_k = plan.lead.family.renamed, int(plan.recipe.document(plan.names)["top_k"])
        common = {name for name, owners in self.shared.items() if len({*owners[: len(plan.members)]}) == 1}
        return sum(
            math.prod(link.shape) * (1 if renamed.get(link.name, link.name) in common else top_k)
            for link in plan.lead.arrays
            if link.role in ("trunk", "mlp")
        )

    def code(self, plan: Plan) -> Mapping[str, bytes]:
        """Return the modelling files."""
        return modelling_file(MIXED if mixes(plan.recipe) else WHOLE, plan.lead.family.class_name)

    def config(self, plan: Plan) -> dict[str, Any]:
        """Return config.json: the lead's own, the members and how they are weighed."""
        return {
            **dense_config(json.loads(plan.lead.file("config.json"))),
            **loading(plan, (MIXED if mixes(plan.recipe) else WHOLE).stem, "EnsembleConfig"),
            **routing_config(plan),
            "shared_tensors": dict(self.shared),
            **({"mixing": plan.recipe.mixing} if mixes(plan.recipe) else {}),
            "vocab_size": plan.lead.architecture.vocab_size,
        }


def routing_config(plan: Plan) -> dict[str, Any]:
    """Return what config.json says of the members and of how they are weighed."""
    recipe = plan.recipe.document(plan.names)
    weights = recipe["weights"] if plan.recipe.routing == POSTERIOR else None
    return {
        "members": plan.names,
        "routing": plan.recipe.routing,
        # `top_k` and `temperature` would be taken for settings of generation.
        "routing_prior": weights and [weight / sum(weights.values()) for weight in weights.values()],
        "routing_temperature": recipe["temperature"],
        "routing_tokens": recipe["routing_tokens"],
        "routing_top_k": recipe["top_k"],
    }


@contextmanager
def opened(plan: Plan, workspace: Workspace) -> Iterator[Source]:
    """Open the tensors of an ensemble, with what its shared trunk is made from in the cache."""
    trunk: Plan | None = plan.parts.trunk
    stored = [tensor.stream() for tensor in plan.tensors if isinstance(tensor.made, Stored)]
    if trunk is None:
        yield Source(stored)
        return
    with pass_context(workspace, plan.used) as context:
        yield Source([*streams_of(tensor_source_of(trunk, context)), *stored], rendering_threads(trunk))


def make_plan(members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
    """Return the plan of an ensemble (arguments and errors as `Output.plan`)."""
    return _of_several(members, recipe) if differ_in_shape(members) else _of_one_architecture(members, base, recipe)


def _of_one_architecture(members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
    """Return the plan of an ensemble of members of one architecture (arguments and errors as `Output.plan`).

    The base model takes part with the routing `task-vector`, and where a shared trunk needs it.
    """
    subset, has_base = make_subset(members, base, recipe), routing_of(recipe).needs_base
    if subset.base is not None and (has_base or takes_task_vectors(recipe)):
        check_soups(subset.members, subset.base)
    _check_vocabularies(subset, recipe)
    dtype = recipe.dtype or common_dtype(subset.everyone)
    trunk = _merged_trunk(subset, recipe, dtype)
    shared, tensors = _tensors(subset, recipe)
    return Plan(
        recipe,
        subset.members,
        subset.base,
        subset.lead,
        dtype,
        f"{ENSEMBLE}{subset.lead.family.model_type}",
        "MixedEnsembleForCausalLM" if mixes(recipe) else "EnsembleForCausalLM",
        (*(trunk.tensors if trunk else ()), *tensors),
        EnsembleParts(shared, trunk),
    )


def _merged_trunk(subset: Subset, recipe: Recipe, dtype: str) -> Plan | None:
    """Return the plan of the trunk that the members share, whose tensors are named as in the folder.

    It is the trunk of the dense model of the same trunk method, byte for byte. None where each member keeps its own.
    """
    if recipe.trunk is None:
        return None
    shared = recipe.replace(to="dense")
    check_statistics(subset.members, shared)
    base = subset.base if shared.needs_base else None
    family, architecture = subset.lead.family, subset.lead.architecture
    tensors = tuple(
        OutputTensor(
            f"members.{OWNER}.{family.renamed.get(array, array)}",
            trunk_dtype(subset.members, base, shared, array),
            Trunk(shape, RowSelection(array)),
        )
        for array, shape in family.trunk_shapes(architecture).items()
    )
    return Plan(shared, subset.members, base, subset.lead, dtype, "", "", tensors, family.dense(architecture))


def _tensors(subset: Subset, recipe: Recipe) -> tuple[dict[str, list[int]], tuple[OutputTensor, ...]]:
    """Return who uses whose tensor, by equal digests or because a trunk is shared, and the versions' own to store."""
    family = subset.lead.family
    has_base = routing_of(recipe).needs_base
    everyone = subset.everyone if has_base else subset.members
    count = len(subset.members)
    prefixes = [f"members.{index}" for index in range(count)] + ["base"] * has_base
    shared: dict[str, list[int]] = {}
    tensors = []
    for array, role in subset.lead.roles.items():
        name = family.renamed.get(array, array)
        if recipe.trunk is not None and role == "trunk":
            # The rows of a trunk of the base model are the base model's to the bit.
            owners = [OWNER] * count + ([OWNER if recipe.trunk == "base" else count] if has_base else [])
            own = {*owners} - {OWNER}
        else:
            digests = [member.link(role, array).digest for member in everyone]
            owners = [digests.index(digest) for digest in digests]
            own = {*owners}
        if owners != list(range(len(everyone))):
            shared[name] = owners
        for owner in sorted(own):
            dtype = recipe.dtype or everyone[owner].link(role, array).dtype
            tensors.append(OutputTensor(f"{prefixes[owner]}.{name}", dtype, Stored(everyone[owner], role, array)))
    return shared, tuple(tensors)


def _check_vocabularies(subset: Subset, recipe: Recipe) -> None:
    """Check that all distributions are over the same tokens.

    Members that share a trunk have one embedding and one head, with a row for every token that any of them knows.
    """
    lead, rows = subset.lead, subset.lead.architecture.vocab_size
    whole = subset.everyone
    if recipe.trunk is not None:
        widest = max(subset.members, key=lambda member: member.architecture.vocab_size)
        whole = (widest, *([subset.base] if subset.base and routing_of(recipe).needs_base else []))
    for other in whole if recipe.trunk is None or routing_of(recipe).needs_base else ():
        if other.architecture.vocab_size != rows:
            raise IncompatibleError(
                f"{lead.version.ref} and {other.version.ref} cannot stand in one ensemble: "
                f"vocab_size {rows} against {other.architecture.vocab_size}",
                "an ensemble mixes distributions over the same tokens: leave one of them out"
                if recipe.trunk is None
                else "choose another --routing, such as prompt-perplexity, which does not run the base model",
            )


CLASS_NAME = "FamiliesForCausalLM"


class FamiliesParts(EnsembleParts):
    """Parts of the plan of an ensemble whose members have several architectures."""

    def active_parameters(self, plan: Plan) -> int:
        """Return the weights of the largest top_k members, which run after the first tokens."""
        sizes = (sum(math.prod(link.shape) for link in m.arrays if link.role in ("trunk", "mlp")) for m in plan.members)
        top_k = int(plan.recipe.document(plan.names)["top_k"])
        return sum(sorted(sizes, reverse=True)[:top_k])

    def code(self, plan: Plan) -> Mapping[str, bytes]:
        """Return the modelling files."""
        return modelling_file(FAMILIES)

    def config(self, plan: Plan) -> dict[str, Any]:
        """Return config.json: the lead's sizes, the configuration of each member, and how they are weighed."""
        return {
            **loading(plan, FAMILIES.stem, "FamiliesConfig"),
            **common_sizes(plan),
            "vocab_size": min(m.architecture.vocab_size for m in plan.members),
            "tie_word_embeddings": False,  # each member's configuration says it
            "member_configs": [own_config(member) for member in plan.members],
            **routing_config(plan),
            "shared_tensors": dict(self.shared),
            "mixing": plan.recipe.mixing,
        }


def _of_several(members: Sequence[Member], recipe: Recipe) -> Plan:
    """Return the plan of an ensemble of members of several architectures (arguments and errors as `Output.plan`)."""
    ordered = ordered_members(members, recipe)
    lead = max(ordered, key=lambda member: member.known_tokens)
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
        known, rows = lead.known_tokens, each.architecture.vocab_size
        if known > rows:
            raise IncompatibleError(
                f"{pair}: the tokenizer of {lead.version.ref} has {known:,} tokens, and {each.version.ref} predicts "
                f"{rows:,}",
                "an ensemble mixes distributions over the same tokens: leave one of them out",
            )
    shared, tensors = _shared(ordered), tuple(_whole_tensors(ordered, recipe.dtype))
    dtype = recipe.dtype or common_dtype(ordered)
    parts = FamiliesParts(shared)
    return Plan(recipe, ordered, None, lead, dtype, FAMILIES_ENSEMBLE, CLASS_NAME, tensors, parts)


def _differ(one: Member, other: Member) -> bool:
    return one.family is not other.family or bool(one.architecture.differences(other.architecture))


def _described(member: Member) -> str:
    return f"{member.family.model_type}, hidden size {member.architecture.hidden_size}"


def _owners(members: Sequence[Member]) -> Iterator[tuple[int, str, str, Role, int]]:
    """Yield number, name in the folder, array and role of each member's tensors, and the first that has the same."""
    first: dict[tuple[str, str], int] = {}
    for index, member in enumerate(members):
        for array, role in member.roles.items():
            name = member.family.renamed.get(array, array)
            yield index, name, array, role, first.setdefault((name, member.link(role, array).digest), index)


def _shared(members: Sequence[Member]) -> dict[str, list[int]]:
    """Return the tensors that members share by equal digests → the number of the one whose tensor each uses."""
    shared: dict[str, list[int]] = {}
    for index, name, _, _, owner in _owners(members):
        if owner != index:
            shared.setdefault(name, list(range(len(members))))[index] = owner
    return shared


def _whole_tensors(members: Sequence[Member], dtype: str | None) -> Iterator[OutputTensor]:
    """Yield the tensors to store: each once."""
    for index, name, array, role, owner in _owners(members):
        if owner == index:
            own = dtype or members[index].link(role, array).dtype
            yield OutputTensor(f"members.{index}.{name}", own, Stored(members[index], role, array))
