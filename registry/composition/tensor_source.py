"""What a plan's tensors are made from: the members' stored arrays, combined by the trunk method."""

from collections.abc import Iterator
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter

import torch

from registry.composition.plan import Plan
from registry.errors import InvalidInputError
from registry.families.sites import MLP_INPUT
from registry.io.torch_blocks import to_tensor
from registry.maths.lam import LamCurve, lam_curve
from registry.maths.router import ROUTERS, RouterInputs, balanced
from registry.maths.statistics import Statistics
from registry.maths.trunk import TRUNKS, Combination
from registry.maths.trunk.combination import Pass
from registry.member import Member
from store.arrays import ArraySource

_Numbered = tuple[int, torch.Tensor]


class TensorSource:
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
            yield from self._rows(name)
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
    def router_weights(self) -> list[float]:
        """What each member's statistics count for in the router, balanced where the recipe says so."""
        plan = self.plan
        if plan.recipe.balance == "none" or not ROUTERS[plan.recipe.router].features:
            return plan.weights
        return balanced(plan.weights, [self.statistics(member, 0).count for member in range(len(plan.members))])

    @property
    def router_weights_by_tokens(self) -> list[float]:
        """What each token of a member counts for in a fit on all members' tokens."""
        return self.plan.statistics_weights

    def gate(self, layer: int) -> torch.Tensor:
        """Return gate.weight of one layer, float64 of shape (E, H), before the temperature.

        Raises:
            InvalidInputError: its linear system cannot be solved.
        """
        plan, recipe = self.plan, self.plan.recipe
        method = ROUTERS[recipe.router]
        statistics = (self.statistics(member, layer) for member in range(len(plan.members)))
        given = RouterInputs(
            statistics if method.features else (),
            self.router_weights,
            self.lam(layer) if "lam" in method.options else 0.0,
            recipe.normalize,
            [recipe.bias.get(name, 0.0) for name in plan.names],
            recipe.seed,
            layer,
            [member.version.digest for member in plan.members],
            plan.lead.architecture.hidden_size,
        )
        try:
            return method.solve(given)
        except ValueError as error:
            raise InvalidInputError(
                f"the router of layer {layer} cannot be solved: {error}", "raise lam, for example --lam 0.1"
            ) from error

    def lam(self, layer: int) -> float:
        """Return the ridge strength of one layer's router."""
        chosen = self.plan.recipe.lam
        return self.lam_curve(layer).best if isinstance(chosen, str) else chosen

    def lam_curve(self, layer: int) -> LamCurve:
        """Return how well routers of various strengths do on folds that they were not made from, at one layer.

        Raises:
            InvalidInputError: the statistics have no folds, or give no router.
        """
        if layer not in self._curves:
            folds = [self.folds(member, layer) for member in range(len(self.plan.members))]
            try:
                self._curves[layer] = lam_curve(folds, self.router_weights, normalize=self.plan.recipe.normalize)
            except ValueError as error:
                raise InvalidInputError(
                    f"lam cannot be chosen for layer {layer}: {error}", "give a number: --lam 0.01"
                ) from error
        return self._curves[layer]

    @cached_property
    def _curves(self) -> dict[int, LamCurve]:
        return {}

    @cached_property
    def _linear_inputs(self) -> dict[str, tuple[str, int]]:
        return self.plan.lead.family.linear_inputs(self.plan.lead.architecture)

    @cached_property
    def _sharing(self) -> dict[tuple[str, int], list[str]]:
        """The linear maps that have the same input."""
        found: dict[tuple[str, int], list[str]] = {}
        for name, where in self._linear_inputs.items():
            found.setdefault(where, []).append(name)
        return found

    @cached_property
    def _under_way(self) -> dict[tuple[str, int], tuple[list[str], Iterator[tuple[int, Iterator[_Numbered]]]]]:
        """Maps of one input that are combined together: which are still to come, and their rows."""
        return {}

    def _rows(self, name: str) -> Iterator[torch.Tensor]:
        method = TRUNKS[self.plan.recipe.trunk]
        if method.together is None or name not in self._linear_inputs or len(self.plan.members) == 1:
            yield from method.combine(self._combination(name))
            return
        where = self._linear_inputs[name]
        names, maps = self._under_way.pop(where, ([], iter(())))
        if name not in names[:1]:  # they are asked for in their order; else anew
            names = self._sharing[where][self._sharing[where].index(name) :]
            maps = groupby(method.together([self._combination(one) for one in names]), key=itemgetter(0))
        _, rows = next(maps)
        yield from (block for _, block in rows)
        if names[1:]:
            self._under_way[where] = names[1:], maps

    def _combination(self, name: str) -> Combination:
        plan, method = self.plan, TRUNKS[self.plan.recipe.trunk]
        base = plan.base if method.needs_base else None
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
            [pass_over(member, name) for member in used],
            plan.weights,
            None if base is None else pass_over(base, name),
            [member.version.digest for member in plan.members],
            inputs,
            plan.statistics_weights if method.needs_inputs else (),
            counts,
            plan.recipe.method_options,
        )


def _statistics(members: tuple[Member, ...], site: str, layer: int) -> Iterator[Statistics]:
    return (member.statistics(site, layer) for member in members)


def pass_over(member: Member, name: str) -> Pass:
    """Return what starts a pass over a member's tensor."""
    source = member.open_weight(name)
    return lambda: (to_tensor(block, source.dtype) for block in source.blocks())
