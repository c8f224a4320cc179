"""The trunk that the members of an ensemble share: made by a trunk method, and stored once."""

from registry.composition.compatibility import Subset, check_statistics
from registry.composition.plan import OutputTensor, Plan, trunk_dtype
from registry.hosts import RowSelection, Trunk
from registry.methods.ensemble.recipe import EnsembleRecipe

OWNER = 0
"""The member under whose name a shared trunk is stored."""


def merged_trunk(subset: Subset, recipe: EnsembleRecipe, dtype: str) -> Plan | None:
    """Return the plan of the trunk that the members share, whose tensors are named as in the folder.

    It is the trunk of the dense model that `recipe.shared_trunk` makes, byte for byte. None where each member keeps
    its own.

    Args:
        subset: the members.
        recipe: how they are weighed, and their trunk.
        dtype: what config.json says of the weights.

    Raises:
        IncompatibleError: a member lacks statistics that the trunk method needs, or dtypes differ.
    """
    shared = recipe.shared_trunk
    if shared is None:
        return None
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
    return Plan(subset.members, base, shared, dtype, subset.lead, family.dense(architecture), tensors)
