"""Plans of ensembles: all members of a subset as whole dense models in one folder."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
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
from registry.hosts.remote_code import modelling_file
from registry.member import Member
from registry.methods.ensemble.host import ENSEMBLE, FAMILIES, FAMILIES_ENSEMBLE, MIXED, WHOLE
from registry.methods.ensemble.output import POSTERIOR, TASK_VECTOR, mixes, routing_of
from registry.methods.moe.checks import check_soups, check_statistics, takes_task_vectors
from registry.methods.moe.model_writer import rendering_threads, streams_of
from registry.methods.moe.passes import tensor_source_of
from registry.methods.moe.plan import trunk_dtype
from registry.methods.whole_members import common_sizes, dense_settings, loading, own_config, weighing
from registry.workspace import Workspace

OWNER = 0
"""The member under whose name a shared trunk is stored."""
SAME_TOKENS = "an ensemble mixes distributions over the same tokens: leave one of them out"


@dataclass(frozen=True)
class EnsembleParts:
    """Parts of the plan of an ensemble.

    Attributes:
        shared: tensor → for each member, and the base model last, the number of the one whose tensor it uses; only
            tensors that some share.
        trunk: the plan of the trunk that the members share; None where each keeps its own.
    """

    shared: Mapping[str, list[int]]
    trunk: Plan | None = None


def active_parameters(plan: Plan) -> int:
    """Return the weights of the members that run after the first tokens.

    Of one architecture what all share counts once; of several these are the largest members.
    """
    top_k = int(plan.recipe.document(plan.names)["top_k"])
    if plan.model_type == FAMILIES_ENSEMBLE:
        sizes = (sum(math.prod(link.shape) for link in m.arrays if link.role in ("trunk", "mlp")) for m in plan.members)
        return sum(sorted(sizes, reverse=True)[:top_k])
    renamed, shared = plan.lead.family.renamed, plan.parts.shared
    common = {name for name, owners in shared.items() if len({*owners[: len(plan.members)]}) == 1}
    return sum(
        math.prod(link.shape) * (1 if renamed.get(link.name, link.name) in common else top_k)
        for link in plan.lead.arrays
        if link.role in ("trunk", "mlp")
    )


def code(plan: Plan) -> dict[str, bytes]:
    """Return the modelling file, by its name."""
    path = _modelling_path(plan)
    return modelling_file(path) if path == FAMILIES else modelling_file(path, plan.lead.family.class_name)


def _modelling_path(plan: Plan) -> Path:
    if plan.model_type == FAMILIES_ENSEMBLE:
        return FAMILIES
    return MIXED if mixes(plan.recipe) else WHOLE


def config(plan: Plan) -> dict[str, Any]:
    """Return config.json: sizes, those of each member where they differ, and how members are weighed."""
    path = _modelling_path(plan)
    if path == FAMILIES:
        sizes = common_sizes(plan) | {
            "vocab_size": min(member.architecture.vocab_size for member in plan.members),
            "tie_word_embeddings": False,  # each member's configuration says it
            "member_configs": [own_config(member) for member in plan.members],
        }
    else:
        sizes = dense_settings(plan.lead)
        sizes["vocab_size"] = plan.lead.architecture.vocab_size
    weights = plan.recipe.document(plan.names)["weights"] if plan.recipe.routing == POSTERIOR else None
    return {
        **sizes,
        **loading(plan, path.stem, "FamiliesConfig" if path == FAMILIES else "EnsembleConfig"),
        **weighing(plan),
        "routing": plan.recipe.routing,
        "routing_prior": weights and [weight / sum(weights.values()) for weight in weights.values()],
        "shared_tensors": dict(plan.parts.shared),
        **({} if path == WHOLE else {"mixing": plan.recipe.mixing}),
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
    everyone = _modules(subset.members) | ({"base": subset.base} if subset.base and has_base else {})
    owners = [OWNER] * len(everyone) if trunk else []
    if trunk and has_base and recipe.trunk != "base":  # whose rows are the base model's to the bit
        owners[-1] = len(subset.members)
    places = ((index, array) for array in subset.lead.roles for index in range(len(everyone)))
    shared, tensors = _stored(everyone, places, recipe.dtype, owners)
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


def _check_vocabularies(subset: Subset, recipe: Recipe) -> None:
    """Check that distributions are over the same tokens; a shared trunk has a row for every token of any member."""
    lead, rows, others, hint = subset.lead, subset.lead.architecture.vocab_size, subset.everyone, SAME_TOKENS
    if recipe.trunk is not None:
        widest = max(subset.members, key=lambda member: member.architecture.vocab_size)
        others = (widest, subset.base) if subset.base and routing_of(recipe).needs_base else ()
        hint = "choose another --routing, such as prompt-perplexity, which does not run the base model"
    for other in others:
        if other.architecture.vocab_size != rows:
            raise IncompatibleError(
                f"{lead.version.ref} and {other.version.ref} cannot stand in one ensemble: "
                f"vocab_size {rows} against {other.architecture.vocab_size}",
                hint,
            )


def _of_several(members: Sequence[Member], recipe: Recipe) -> Plan:
    ordered = ordered_members(members, recipe)
    lead = max(ordered, key=lambda member: member.known_tokens)
    other = next(m for m in ordered if differ_in_shape((m, lead)))
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
                SAME_TOKENS,
            )
    places = ((index, array) for index, member in enumerate(ordered) for array in member.roles)
    shared, tensors = _stored(_modules(ordered), places, recipe.dtype)
    dtype, parts = recipe.dtype or common_dtype(ordered), EnsembleParts(shared)
    return Plan(recipe, ordered, None, lead, dtype, FAMILIES_ENSEMBLE, "FamiliesForCausalLM", tensors, parts)


def _described(member: Member) -> str:
    return f"{member.family.model_type}, hidden size {member.architecture.hidden_size}"


def _modules(members: Sequence[Member]) -> dict[str, Member]:
    return {f"members.{index}": member for index, member in enumerate(members)}


def _stored(
    everyone: Mapping[str, Member], places: Iterable[tuple[int, str]], dtype: str | None, trunk: Sequence[int] = ()
) -> tuple[dict[str, list[int]], tuple[OutputTensor, ...]]:
    """Return who uses whose tensor, by equal digests or because a trunk is shared, and the versions' own to store.

    `everyone` has the version in each module, a base model last; `places` the number of the version and the array of a
    tensor, in the folder's order; `trunk` says whose each uses, and is empty where this follows from digests.
    """
    modules, first = list(everyone), dict[tuple[str, str], int]()
    shared: dict[str, list[int]] = {}
    tensors = []
    for index, array in places:
        member = everyone[modules[index]]
        role, name = member.roles[array], member.family.renamed.get(array, array)
        link, is_merged = member.link(role, array), bool(trunk) and role == "trunk"
        owner = trunk[index] if is_merged else first.setdefault((name, link.digest), index)
        if owner != index:
            shared.setdefault(name, list(range(len(everyone))))[index] = owner
        elif not (is_merged and index == OWNER):
            own = f"{modules[index]}.{name}"
            tensors.append(OutputTensor(own, dtype or link.dtype, Stored(member, role, array)))
    return shared, tuple(tensors)
