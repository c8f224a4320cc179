"""Plans of SIMoEs: experts that were trained together, as they were trained (SIMoE, Chen et al. 2025)."""

from collections.abc import Iterator, Sequence
from typing import Any

from registry.composition.compatibility import make_subset
from registry.composition.plan import OutputTensor, Plan
from registry.composition.recipe.recipe import Recipe
from registry.composition.stored import Stacked, Stored
from registry.errors import IncompatibleError, InvalidInputError
from registry.member import Member
from registry.methods.simoe.host import MODELLING_FILE, SIMOE, interpolated_layers
from registry.methods.simoe.versions import DELTA, KEY, MASK, ROW
from registry.methods.whole_members import dense_settings, loading
from registry.workspace import Workspace
from store.catalog import VersionRecord


def config(plan: Plan) -> dict[str, Any]:
    """Return config.json: the base model's own, the members, and the layers that have a D."""
    base = plan.lead
    return {
        **dense_settings(base),
        **loading(plan, MODELLING_FILE.stem, "SimoeConfig"),
        "interpolated_layers": interpolated_layers(base.family, base.architecture),
        "prompt_tokens": int(plan.members[0].content[KEY]["prompt_tokens"]),
        "vocab_size": base.architecture.vocab_size,
    }


def _tensors(members: tuple[Member, ...], base: Member, dtype: str | None) -> Iterator[OutputTensor]:
    """Yield the base model's tensors, a D for each linear layer, and the members' masks and router rows."""
    renamed = base.family.renamed
    for link in base.arrays:
        if link.role in ("trunk", "mlp"):
            name = renamed.get(link.name, link.name)
            yield OutputTensor(name, dtype or link.dtype, Stored(base, link.role, link.name))
    arrays = (f"{DELTA}{name}" for name in base.family.layer_matrices(base.architecture))
    for layer, array in zip(interpolated_layers(base.family, base.architecture), arrays, strict=True):
        own = dtype or members[0].link(KEY, array).dtype
        yield OutputTensor(f"{layer}.delta", own, Stored(members[0], KEY, array))
    for name, array in (("masks", MASK), ("router", ROW)):
        yield OutputTensor(name, members[0].link(KEY, array).dtype, Stacked(members, KEY, array))


def make_simoe(members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
    """Return the SIMoE of `members`, versions of different experts in any order, on the base model of their training.

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
            one, another = (str(member.content[KEY][key])[:12] for member in (first, other))
            if first.content[KEY][key] != other.content[KEY][key]:
                raise IncompatibleError(
                    f"{first.version.ref} and {other.version.ref} are experts of different trainings: their {called} "
                    f"are {one} and {another}",
                    "compose experts of one reg train-simoe",
                )
    trained_from, weights = str(first.content[KEY]["base"]), str(base.content["weights"])
    if trained_from != weights:
        raise IncompatibleError(
            f"{first.version.ref} was trained from a base model of weights {trained_from[:12]}, and {base.version.ref} "
            f"has {weights[:12]}",
            "name the base model that it was trained from: --base NAME[@V]",
        )
    dtype = recipe.dtype or str(base.content["dtype"])
    tensors, host = tuple(_tensors(subset.members, base, recipe.dtype)), f"{SIMOE}{base.family.model_type}"
    return Plan(recipe, subset.members, base, base, dtype, host, "SimoeForCausalLM", tensors)


def check_trained(members: Sequence[Member]) -> None:
    """Raise IncompatibleError unless members are experts of a SIMoE."""
    for member in members:
        if KEY not in member.content:
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
    weights = str(first.content[KEY]["base"])
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
