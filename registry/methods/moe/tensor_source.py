"""Sources of a plan's tensors: where the bytes of a composed model come from.

`TensorSource` is the interface that the writers of a model use. Two classes implement it:

    StoredSource        the members' stored arrays, combined by the trunk method
    RecollectedSource   the same tensors, with routers solved from statistics that passes collected

Each holds a `RouterSolver` over its own statistics, so that routers are solved in one way.

Shapes: E members (experts of a layer), L layers, H hidden size, V vocabulary; R and C the rows and columns of one dense
tensor. `combined` yields a tensor as blocks of its rows, (r, C) each with the r adding up to R, or (r,) for a vector.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from itertools import groupby
from math import prod
from operator import itemgetter
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from registry.composition.method import BASE, OWN
from registry.composition.plan import Plan
from registry.composition.stored import pass_over
from registry.errors import InvalidInputError
from registry.families.sites import MLP_INPUT
from registry.io.process import return_freed_memory
from registry.maths.router.gates import balanced
from registry.maths.router.inputs import RouterInputs
from registry.maths.statistics import PackedStatistics
from registry.maths.trunk.combination import Combination, Rows, tile_rows
from registry.methods.moe.context import ContextInputs, SharedTensors
from registry.methods.moe.output import router_of, trunk_of
from registry.methods.moe.plan import statistics_weights
from registry.methods.moe.trunks import SUM
from registry.statistics.cache import KeptTensors, NumberedBlock, arrays_of
from registry.statistics.file import Collected
from store.arrays import ArraySource


@runtime_checkable
class SiteStatistics(Protocol):
    """Statistics of one member, by site and layer; `Member` and `Collected` have them."""

    def packed_statistics(self, site: str, layer: int) -> PackedStatistics:
        """Return the statistics of one site and layer as they are stored."""


class RouterSolver:
    """The routers of a plan, solved from the members' statistics when they are first used.

    Args:
        members: the statistics of each member, in the plan's order.
        sums: where the sum of the plan's members' own statistics is kept; None to add up `members`.
    """

    def __init__(self, plan: Plan, members: Sequence[SiteStatistics], sums: KeptTensors | None = None) -> None:
        self._plan, self._members, self._sums = plan, members, sums

    @cached_property
    def weights(self) -> list[float]:
        """The factor of each member's statistics, balanced if the recipe asks for it."""
        plan, method = self._plan, self._plan.recipe.router_method
        if plan.recipe.balance == "none" or method is None or method.statistics not in (OWN, BASE):
            return plan.weights
        return balanced(plan.weights, [member.packed_statistics(MLP_INPUT, 0).count for member in self._members])

    def gate(self, layer: int) -> Float[Tensor, "E H"]:
        """Return `gate.weight` of a layer, float64, before the temperature (InvalidInputError: it cannot be solved)."""
        plan, recipe = self._plan, self._plan.recipe
        method = router_of(recipe)
        # A generator: a Gram is (H + 1, H + 1), and only one member's needs to be in memory.
        statistics = (member.packed_statistics(MLP_INPUT, layer) for member in self._members)
        inputs = RouterInputs(
            statistics if method.statistics else (),
            self.weights,
            recipe.lam or 0.0,
            bool(recipe.normalize),
            [recipe.bias.get(name, 0.0) for name in plan.names],
            recipe.seed or 0,
            layer,
            [member.row_key for member in plan.members],
            plan.lead.architecture.hidden_size,
            lambda: [member.router_row(layer) for member in plan.members],
            partial(self._sums.gram, plan.members, MLP_INPUT, layer, self.weights) if self._sums else None,
        )
        try:
            return method.solve(inputs)
        except ValueError as error:
            raise InvalidInputError(
                f"the router of layer {layer} cannot be solved: {error}", "raise lam, for example --lam 0.1"
            ) from error

    def bias(self, layer: int) -> Float[Tensor, "E"]:
        """Return what is added to the logits of one layer in float64, before the temperature: trained and asked for."""
        recipe = self._plan.recipe
        if recipe.router_method is None or not recipe.router_method.is_trained:
            return torch.zeros(len(self._plan.members), dtype=torch.float64)
        biases = [recipe.bias.get(member.name, 0.0) + member.router_bias(layer) for member in self._plan.members]
        return torch.tensor(biases, dtype=torch.float64)


@runtime_checkable
class TensorSource(SharedTensors, Protocol):
    """Everything that a plan's tensors are made from."""

    @property
    def routers(self) -> RouterSolver:
        """The routers, and the statistics that they are solved from."""

    @property
    def context(self) -> ContextInputs:
        """The inputs of a context layer."""

    def mlp(self, member: int, name: str) -> ArraySource:
        """Return one MLP tensor of a member, under its name in the dense model."""


class StoredSource:
    """Tensors made from the members' stored arrays; `kept` has their products of weights and Grams, and sums."""

    def __init__(self, plan: Plan, kept: KeptTensors | None = None) -> None:
        self.plan = plan
        self._kept = kept or KeptTensors()
        self.routers = RouterSolver(plan, plan.members, self._kept)
        self.context = ContextInputs(self)
        self._method = trunk_of(plan.recipe)
        self._pending: dict[tuple[str, int], tuple[list[str], Iterator[tuple[int, Iterator[NumberedBlock]]]]] = {}
        """Input → the maps of it that are still to come, and their rows."""

    def combined(self, name: str) -> Iterator[Float[Tensor, "r ..."]]:
        """Yield the rows of one tensor, combined by the trunk method."""
        try:
            yield from self._rows(name)
        except ValueError as error:
            raise InvalidInputError(
                f"tensor {name} cannot be combined by {self.plan.recipe.trunk}: {error}",
                "choose another method, for example --trunk mean",
            ) from error

    def mlp(self, member: int, name: str) -> ArraySource:
        """Return one MLP tensor of a member, as it was stored."""
        return self.plan.members[member].open("mlp", name)

    @cached_property
    def _linear_inputs(self) -> dict[str, tuple[str, int]]:
        """Linear map → the site and layer of its input."""
        return self.plan.lead.family.linear_inputs(self.plan.lead.architecture)

    def _rows(self, name: str) -> Iterator[Tensor]:
        method = self._method
        if not method.solves_together or name not in self._linear_inputs or len(self.plan.members) == 1:
            yield from method.combine(self._combination(name))
            return
        # Query, key and value have one input, so one Gram (H, H): it is factored once, and the rows of all three are
        # solved with it, one map after the other. The other maps wait in `_pending` for the next call, which comes from
        # the same thread.
        site_and_layer = self._linear_inputs[name]
        names, maps = self._pending.pop(site_and_layer, ([], iter(())))
        if name not in names[:1]:  # not the map that comes next: factor again, and begin with this map
            together = [one for one, place in self._linear_inputs.items() if place == site_and_layer]
            names = together[together.index(name) :]
            maps = groupby(self._together(together, len(together) - len(names)), key=itemgetter(0))
        _, blocks = next(maps)  # the blocks (r, C) of the first map
        yield from (block for _, block in blocks)
        if names[1:]:
            self._pending[site_and_layer] = names[1:], maps

    def _together(self, names: Sequence[str], first: int) -> Iterator[NumberedBlock]:
        """Yield the rows of the maps of one input, from one of them on."""
        plan, (site, layer) = self.plan, self._linear_inputs[names[0]]
        solve = partial(self._solved, names)
        shapes = [plan.lead.weight(name).shape for name in names]
        arrays = [arrays_of(member, site, layer, names) for member in plan.members]
        options = [plan.recipe.trunk, dict(plan.recipe.method_options), plan.weights, statistics_weights(plan)]
        made_from = [layer, list(names), arrays, options]
        keeps = self._kept.keeps(plan.weights) and self._kept.keeps(statistics_weights(plan))
        yield from self._kept.maps(shapes, made_from, solve, first) if keeps else solve(first)
        return_freed_memory()

    def _solved(self, names: Sequence[str], first: int) -> Iterator[NumberedBlock]:
        """Yield the same, from the members' products."""
        site, layer = self._linear_inputs[names[0]]
        with ExitStack() as stack:
            opened = [
                stack.enter_context(self._kept.products(member, site, layer, names)) for member in self.plan.members
            ]
            combinations = [self._combination(name, [rows[name] for rows in opened]) for name in names[first:]]
            yield from ((first + number, rows) for number, rows in self._method.combine_together(combinations))

    def _combination(self, name: str, products: Sequence[Rows] = ()) -> Combination:
        plan, method = self.plan, self._method
        base = plan.base if method.needs_base else None
        # A base model of fewer tokens lacks the last rows of the embedding (V, H): the members then provide them.
        lacks_rows = base is not None and base.weight(name).shape[0] < plan.lead.weight(name).shape[0]
        members = plan.members if method.needs_members or lacks_rows else ()
        inputs = counts = None
        if method.needs_inputs and len(plan.members) > 1:
            if name in self._linear_inputs:
                site, layer = self._linear_inputs[name]
                inputs = partial(map, lambda member: member.packed_statistics(site, layer), plan.members)
            elif name == plan.lead.family.embedding:
                counts = [member.token_counts for member in plan.members]  # (V,) each
        shapes = {member.weight(name).shape for member in members}
        # Pieces that the cache holds are averaged before the next is read. Of one shape, they are the tiles of blocks.
        rows = tile_rows(prod(shapes.pop()[1:])) if method.tiled and inputs is None and len(shapes) == 1 else None
        return Combination(
            name,
            [pass_over(member, name, rows) for member in members],
            plan.weights,
            None if base is None else pass_over(base, name),
            [member.version.digest for member in plan.members],
            inputs,
            products,
            statistics_weights(plan) if method.needs_inputs else (),
            counts,
            plan.recipe.method_options,
            plan.coefficients,
            summed=plan.recipe.combine == SUM,
        )


class RecollectedSource:
    """Tensors of another source, with routers solved from statistics of their own."""

    def __init__(self, inner: TensorSource, statistics: Sequence[Collected]) -> None:
        self.plan, self.context = inner.plan, inner.context
        self.combined, self.mlp = inner.combined, inner.mlp
        self.routers = RouterSolver(inner.plan, statistics)
