"""What a plan's tensors are made from: the members' stored arrays, combined by the trunk method."""

from collections.abc import Iterator
from functools import cached_property, partial

import torch

from registry.composing.member import Member
from registry.composing.plan import Plan
from registry.errors import InvalidInputError
from registry.maths.statistics import Statistics
from registry.maths.trunk import TRUNKS, Combination
from registry.maths.trunk.tensor import Pass
from registry.sites import MLP_INPUT
from registry.tensors import to_tensor
from store.arrays import ArraySource


class Materials:
    """Where a plan's tensors come from; a refinement puts other things in place of some.

    Args:
        plan: what is composed.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def combined(self, name: str) -> Iterator[torch.Tensor]:
        """Yield the rows of one tensor that all members share, in the dense model's terms.

        Raises:
            DamagedError: an array it is made from is not what was stored.
            InvalidInputError: a linear system cannot be solved.
        """
        try:
            yield from TRUNKS[self.plan.recipe.trunk].combine(self._combination(name))
        except ValueError as error:
            raise InvalidInputError(
                f"tensor {name} cannot be combined by {self.plan.recipe.trunk}: {error}",
                "choose another method, for example --trunk mean",
            ) from error

    def mlp(self, member: int, name: str) -> ArraySource:
        """Return one MLP tensor of a member."""
        return self.plan.members[member].open("mlp", name)

    def folds(self, member: int, layer: int) -> tuple[Statistics, ...]:
        """Return a member's statistics of one layer's MLP input, in parts."""
        return self.plan.members[member].folds(MLP_INPUT, layer)

    def statistics(self, member: int, layer: int) -> Statistics:
        """Return a member's statistics of one layer's MLP input."""
        return self.plan.members[member].statistics(MLP_INPUT, layer)

    @cached_property
    def _linear_inputs(self) -> dict[str, tuple[str, int]]:
        return self.plan.lead.family.linear_inputs(self.plan.lead.architecture)

    def _combination(self, name: str) -> Combination:
        plan, method = self.plan, TRUNKS[self.plan.recipe.trunk]
        base = plan.base
        lacking = base is not None and base.weight(name).shape[0] < plan.lead.weight(name).shape[0]
        used = plan.members if method.needs_members or lacking else ()
        inputs = counts = None
        if method.needs_inputs and len(plan.members) > 1:
            if name in self._linear_inputs:
                site, layer = self._linear_inputs[name]
                inputs = partial(_statistics, plan.members, site, layer)
            elif name == plan.lead.family.embedding:
                counts = [member.token_counts for member in plan.members]
        return Combination(
            name,
            [_pass(member, name) for member in used],
            plan.weights,
            None if base is None else _pass(base, name),
            [member.version.digest for member in plan.members],
            inputs,
            plan.statistics_weights if method.needs_inputs else (),
            counts,
            plan.recipe.method_options,
        )


def _statistics(members: tuple[Member, ...], site: str, layer: int) -> Iterator[Statistics]:
    return (member.statistics(site, layer) for member in members)


def _pass(member: Member, name: str) -> Pass:
    source = member.open_weight(name)
    return lambda: (to_tensor(block, source.dtype) for block in source.blocks())
