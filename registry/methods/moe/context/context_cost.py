"""Cost of context routing: layers, channels and weights beyond those of a plan whose routers read the stream."""

from registry.composition.method import COUNTS
from registry.composition.plan import Plan, RoutingCost
from registry.hosts.remote_code import REMOTE_CODE
from registry.hosts.tensors import HeadMap, OwnHeadMap
from registry.methods.moe.plan import context_windows, make_plan
from registry.methods.moe.recipe import top_k


def context_cost(plan: Plan) -> RoutingCost | None:
    """Return what context routing adds to a plan, None if the plan has no such routing."""
    recipe = plan.recipe
    if recipe.router_method is None or recipe.router_method.statistics != COUNTS or len(plan.members) < 2:
        return None
    # Random routers need no statistics, and have the shapes of all routers that read the stream.
    plain = recipe.replace(router="random", top_k=top_k(recipe, len(plan.members)), refine_mlp=False)
    without = make_plan(plan.members, plan.base, plain)
    mine, other = plan.parts.architecture, without.parts.architecture
    has_window = recipe.host == REMOTE_CODE or bool(context_windows(without.parts, recipe.context_window)[0].slow)
    return RoutingCost(
        mine.num_hidden_layers - other.num_hidden_layers,
        any(isinstance(tensor.made, HeadMap | OwnHeadMap) for tensor in plan.tensors),
        mine.num_hidden_layers - 1,
        mine.hidden_size - other.hidden_size,
        float(recipe.context_window) if has_window else 0.0,
        plan.parameters - without.parameters,
        plan.nbytes - without.nbytes,
    )
