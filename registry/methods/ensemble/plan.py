"""Plans of ensembles: all members of a subset as whole dense models in one folder."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from registry.composition.compatibility import Subset, common_dtype, make_subset
from registry.composition.passes import pass_context
from registry.composition.plan import OutputTensor, Plan, Source, Stored
from registry.composition.recipe.recipe import Recipe
from registry.errors import IncompatibleError
from registry.hosts import RowSelection, Trunk
from registry.hosts.host import dense_config
from registry.hosts.remote_code import ENSEMBLE, ENSEMBLE_MODULE, MIXED_MODULE, ensemble_code, mixed_code
from registry.member import Member
from registry.methods.ensemble.output import mixes, routing_of
from registry.methods.ensemble.routings import POSTERIOR
from registry.methods.moe.checks import check_soups, check_statistics, takes_task_vectors
from registry.methods.moe.model_writer import rendering_threads, streams_of
from registry.methods.moe.passes import tensor_source_of
from registry.methods.moe.plan import trunk_dtype
from registry.methods.whole_members import loading
from registry.workspace import Workspace
from store.catalog.records import Role

OWNER = 0
"""The member under whose name a shared trunk is stored."""


@dataclass(frozen=True)
class EnsembleParts:
    """What an ensemble keeps of its plan, with its members all of one architecture.

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
        return (mixed_code if mixes(plan.recipe) else ensemble_code)(plan.lead.family.class_name)

    def config(self, plan: Plan) -> dict[str, Any]:
        """Return config.json: the lead's own, the members and how they are weighed."""
        return {
            **dense_config(json.loads(plan.lead.file("config.json"))),
            **loading(plan, MIXED_MODULE if mixes(plan.recipe) else ENSEMBLE_MODULE, "EnsembleConfig"),
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


def make_ensemble(members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
    """Return the plan of an ensemble of `members` of one architecture (in any order) by `recipe`.

    Args:
        members: active versions of different experts.
        base: the base model; it takes part with the routing `task-vector`, and where a shared trunk needs it.
        recipe: how they are weighed.

    Raises:
        InvalidInputError: no member, a name twice, a recipe that does not fit them, or no base model where one is
            needed.
        IncompatibleError: members differ in what must agree; the message says in what, and who from whom.
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

    Raises:
        IncompatibleError: a member lacks statistics that the trunk method needs, or dtypes differ.
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
    family, architecture = subset.lead.family, subset.lead.architecture
    has_base = routing_of(recipe).needs_base
    everyone = subset.everyone if has_base else subset.members
    count = len(subset.members)
    prefixes = [f"members.{index}" for index in range(count)] + ["base"] * has_base
    roles: dict[str, Role] = dict.fromkeys(family.trunk_shapes(architecture), "trunk")
    roles |= dict.fromkeys(family.mlp_shapes(architecture), "mlp")
    shared: dict[str, list[int]] = {}
    tensors = []
    for array, role in roles.items():
        name = family.renamed.get(array, array)
        if recipe.trunk is not None and role == "trunk":
            owners = [OWNER] * count
            if has_base and recipe.trunk == "base":
                owners.append(OWNER)  # its rows are the base model's to the bit
            elif has_base:
                owners.append(count)
                dtype = recipe.dtype or everyone[-1].link(role, array).dtype
                tensors.append(_stored(f"{prefixes[-1]}.{name}", everyone[-1], role, array, dtype))
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
            tensors.append(_stored(f"{prefixes[owner]}.{name}", everyone[owner], role, array, dtype))
    return shared, tuple(tensors)


def _stored(name: str, owner: Member, role: Role, array: str, dtype: str) -> OutputTensor:
    return OutputTensor(name, dtype, Stored(owner, role, array))


def _check_vocabularies(subset: Subset, recipe: Recipe) -> None:
    """Check that all distributions are over the same tokens.

    Members that share a trunk have one embedding and one head, with a row for every token that any of them knows.

    Raises:
        IncompatibleError: a whole model of the folder has fewer tokens than the others.
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
