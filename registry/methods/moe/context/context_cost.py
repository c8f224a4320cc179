"""Cost of context routing: layers, channels and weights beyond those of a plan whose routers read the stream."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from registry.composition.plan import Plan, context_windows, make_plan
from registry.composition.recipe.recipe_fields import FIELDS
from registry.hosts.remote_code import REMOTE_CODE
from registry.hosts.tensors import HeadMap, OwnHeadMap
from registry.maths.router import COUNTS, ROUTERS


@dataclass(frozen=True)
class ContextCost:
    """Layers, channels and weights that context routing adds to a composition.

    Attributes:
        layers: layers, of evidence and of head maps; 0 where a modelling file does by itself what they do.
        maps: it has head maps, in the last layer or in a modelling file.
        last: number of the last layer.
        channels: channels of the residual stream.
        window: τ in tokens, 0 for the whole text so far: where the recipe asks for it, or the rope has no window.
        parameters: weights.
        bytes: bytes of weights.
    """

    layers: int
    maps: bool
    last: int
    channels: int
    window: float
    parameters: int
    bytes: int

    def document(self) -> dict[str, Any]:
        """Return it as `--json` shows it."""
        return asdict(self)


def context_cost(plan: Plan) -> ContextCost | None:
    """Return what context routing adds to a plan, None if the plan has no such routing."""
    recipe = plan.recipe
    if recipe.to != "moe" or ROUTERS[recipe.router].features != COUNTS or len(plan.members) < 2:
        return None
    # Random routers need no statistics, and have the shapes of all routers that read the stream.
    plain = replace(
        recipe,
        router="random",
        context_window=FIELDS["context_window"].default,
        vocabulary=FIELDS["vocabulary"].default,
        top_k=recipe.experts_per_token(len(plan.members)),
        refine_mlp=False,
    )
    without = make_plan(plan.members, plan.base, plain)
    mine, other = plan.translation.architecture, without.translation.architecture
    has_window = recipe.host == REMOTE_CODE or bool(context_windows(without.translation, recipe.context_window)[0].slow)
    return ContextCost(
        mine.num_hidden_layers - other.num_hidden_layers,
        any(isinstance(tensor.made, HeadMap | OwnHeadMap) for tensor in plan.tensors),
        mine.num_hidden_layers - 1,
        mine.hidden_size - other.hidden_size,
        float(recipe.context_window) if has_window else 0.0,
        plan.parameters - without.parameters,
        plan.nbytes - without.nbytes,
    )
