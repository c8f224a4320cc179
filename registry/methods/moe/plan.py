"""The plan of a mixture or a dense model: host, every tensor and how it is made."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from registry.composition.compatibility import common_dtype, length_notes, make_subset, one_dtype
from registry.composition.method import COUNTS
from registry.composition.plan import EXPERTS, ROUTER, TRUNK, OutputTensor, Plan, RoutingCost
from registry.composition.recipe.recipe import Recipe
from registry.composition.taken_files import taken_notes
from registry.composition.trained import EQUAL_COPIES
from registry.errors import UnsupportedFamilyError
from registry.families import Translation
from registry.hosts import Constant, Experts
from registry.hosts.context import MEAN, SHARPNESS, ContextLayout, ContextWindows, no_fast_window
from registry.hosts.context_mlp import ALARM, compares
from registry.hosts.head_map import holds_maps
from registry.hosts.host import NORM_TOPK_PROB
from registry.hosts.remote_code import BIASED, CONTEXT, HEAD_MAPS, REMOTE_CODE, WHOLE_SOFTMAX, routed_host
from registry.hosts.tensors import Entries, Evidence, HeadMap, OwnHeadMap, Router, RouterBias
from registry.maths.context.prefix import FAST, FAST_OF_TURNS
from registry.maths.context.rotary import recency_amplitudes, rotary_tables
from registry.maths.router.gates import balanced
from registry.member import Member
from registry.methods.moe.checks import check_mixture, equal_mlp_notes
from registry.methods.moe.options import SOFTMAX_TOPK, SOLVES_AGAIN
from registry.methods.moe.output import top_k, trunk_of
from registry.methods.moe.routers import SHARED


def make_plan(members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
    """Return the plan of composing members by a recipe (arguments and errors as `Output.plan`).

    (UnsupportedFamilyError: the host does not carry them, so many of them, or what their routers are to do.)
    """
    subset = make_subset(members, base, recipe)
    check_mixture(subset, recipe)
    lead, router = subset.lead, recipe.router_method
    if is_biased := _has_router_bias(subset.members, recipe):
        if recipe.host not in (None, REMOTE_CODE):
            raise UnsupportedFamilyError(
                f"host {recipe.host!r} has no router bias, and this composition has one",
                "drop --host: the folder then carries a modelling file; or drop --bias",
            )
        recipe = recipe.replace(host=REMOTE_CODE)
    translation = lead.family.dense(lead.architecture) if router is None else _translation(lead, recipe.host)
    if is_biased:
        host = routed_host(lead.family, BIASED, bias=True)
        translation = replace(translation, host=host, notes=(*translation.notes, _BIAS_NOTE))
    if recipe.gating == SOFTMAX_TOPK:
        translation = _with_softmax_topk(translation, lead, bias=is_biased)
    dtype = recipe.dtype or common_dtype(subset.members)
    tensors = tuple(_tensors(subset.members, subset.base, recipe, dtype, lead, translation))
    plan = _carried(Plan(recipe, subset.members, subset.base, lead, dtype, "", "", tensors), translation)
    if router is None or router.statistics != COUNTS or len(plan.members) == 1:
        return plan
    return _with_context(plan)


def _carried(plan: Plan, translation: Translation) -> Plan:
    host = translation.host
    return replace(plan, model_type=host.model_type, class_name=host.class_name, parts=translation)


def notes(plan: Plan) -> Iterator[str]:
    """Yield remarks on a mixture or a dense model for its user."""
    yield from plan.parts.notes
    if plan.from_base:
        yield EQUAL_COPIES
    elif plan.recipe.router_method is not None:
        yield from equal_mlp_notes(plan.members)
    yield from length_notes(plan.members)
    yield from taken_notes(plan.members, plan.lead)


def statistics_weights(plan: Plan) -> list[float]:
    """Return the factors of the members' statistics: ω, if tokens are balanced times the mean count over their own."""
    if plan.recipe.balance == "none":
        return plan.weights
    return balanced(plan.weights, [member.tokens for member in plan.members])


def _with_context(plan: Plan) -> Plan:
    """Return a plan with the context layer that its routers read, and the channels that it needs."""
    recipe, translation = plan.recipe, plan.parts
    if recipe.host == REMOTE_CODE:
        return _with_evidence(plan)
    windows, notes = context_windows(plan, translation)
    maps, more = _head_maps(translation, recipe)
    try:
        layout = ContextLayout(translation.host, translation.architecture, len(plan.members), windows, maps=maps)
    except ValueError as error:
        fewer = "; or name fewer experts; or, for adapters of one base model, --to adapters"
        raise UnsupportedFamilyError(
            f"--router context cannot be used here: {error}",
            f"choose --router {SOLVES_AGAIN}, or add --remote-code: the folder then carries a modelling file of its "
            f"own{fewer if translation.host.context else ''}",
        ) from error
    dtypes = {layout.name(tensor.name): tensor.dtype for tensor in plan.tensors if tensor.part == TRUNK}
    trunk = layout.trunk(translation.trunk)
    tensors = [OutputTensor(name, dtypes.get(name, plan.dtype), made) for name, made in trunk.items()]
    last: list[OutputTensor] = []
    for tensor in plan.tensors:
        name, dtype, made = tensor.name, tensor.dtype, tensor.made
        if isinstance(made, Router):
            no_gate = Constant((len(plan.members), layout.hidden_size), 0.0)  # experts are all alike there
            tensors += [OutputTensor(own, dtype, no_gate, ROUTER) for own in layout.own_names(name)]
            tensors.append(OutputTensor(layout.name(name), dtype, layout.gate(recipe.temperature), ROUTER))
            if layout.is_copied_last(name):
                last.append(OutputTensor(layout.last_name(name), dtype, layout.gate(recipe.temperature), ROUTER))
        elif isinstance(made, Experts):
            for own in layout.own_names(name):
                tensors.append(OutputTensor(own, dtype, layout.own_experts(own, made), EXPERTS))
            tensors.append(OutputTensor(layout.name(name), dtype, layout.experts(made), EXPERTS))
            if layout.is_copied_last(name):
                last.append(OutputTensor(layout.last_name(name), dtype, layout.last_experts(name, made), EXPERTS))
    if translation.host.context and translation.host.context.fixed_heads:
        limit = f"transformers 4 derives the size of {translation.host.model_type}'s heads from its hidden size"
        notes = (*notes, f"{limit}, and cannot load a context layer: use transformers 5")
    carried = replace(translation, architecture=layout.architecture, notes=(*translation.notes, *notes, *more))
    return _carried(replace(plan, tensors=(*tensors, *last)), carried)


def _head_maps(translation: Translation, recipe: Recipe) -> tuple[bool, tuple[str, ...]]:
    if recipe.vocabulary == SHARED or translation.host.context is None:
        return False, ()
    if holds_maps(translation.host.context, translation.architecture):
        return True, ()
    return False, ("its MLPs are too narrow for head maps, or their activation is of another kind: the head is shared",)


def _with_evidence(plan: Plan) -> Plan:
    """Return a plan for a modelling file that averages evidence by itself: no router, and head maps as they are."""
    family, recipe, translation = plan.lead.family, plan.recipe, plan.parts
    has_maps = recipe.vocabulary != SHARED
    host = routed_host(
        family,
        CONTEXT,
        context_window=float(recipe.context_window),
        context_fast=short if recipe.context_window > (short := fast_window(plan)) else 0.0,
        context_alarm=ALARM,
        context_sharpness=SHARPNESS * MEAN / recipe.temperature,
        head_maps=has_maps,
    )
    experts, size = len(plan.members), translation.architecture.hidden_size
    thresholds = tuple(((e, n), (e, n), 1.0) for e in range(experts) for n in range(experts))
    evidence = Evidence((translation.architecture.vocab_size, experts))
    maps = {"weight": (size, size)} | ({"bias": (size,)} if family.last_norm.bias else {})
    tensors = (
        *(tensor for tensor in plan.tensors if not isinstance(tensor.made, Router)),
        OutputTensor("evidence", "float32", evidence, ROUTER),
        OutputTensor("thresholds", "float32", Entries((experts, experts), thresholds=thresholds), ROUTER),
        *(
            OutputTensor(f"{HEAD_MAPS}.experts.{expert}.{part}", plan.dtype, OwnHeadMap(shape, expert), EXPERTS)
            for expert in range(experts if has_maps else 0)
            for part, shape in maps.items()
        ),
    )
    return _carried(replace(plan, tensors=tensors), replace(translation, host=host))


def fast_window(plan: Plan) -> float:
    """Return τ of the fast window, in tokens: longer where a member is known by messages of conversations."""
    return FAST_OF_TURNS if any(member.is_of_contents for member in plan.members) else FAST


def context_windows(plan: Plan, translation: Translation) -> tuple[ContextWindows, tuple[str, ...]]:
    """Return the windows of a context layer for the recipe's τ in tokens, 0 for the whole text so far, and remarks."""
    kind, architecture = translation.host.context, translation.architecture
    tau, experts, short = plan.recipe.context_window, len(plan.members), fast_window(plan)
    if not tau or kind is None:
        return ContextWindows(), ()
    rotary = rotary_tables(architecture.rope_parameters, architecture.head_dim, architecture.max_position_embeddings)
    slow = recency_amplitudes(rotary, float(tau))
    if slow is None:
        note = f"its rope cannot weigh the past by a window of {tau:g} tokens: routers read the mean of the whole text"
        return ContextWindows(), (note,)
    windows = ContextWindows(tuple(slow.tolist()), factor=rotary.factor)
    fast = recency_amplitudes(rotary, short) if tau > short else None
    if fast is None:
        return windows, ()
    both = replace(windows, fast=tuple(fast.tolist()))
    if (reason := no_fast_window(kind, architecture, both, experts)) is not None:
        return windows, (f"routers have no fast window, and notice a change of subject late: {reason}",)
    if compares(architecture, experts):
        return both, ()
    size = f"MLPs of {architecture.intermediate_size} activations do not compare each pair of {experts} experts"
    return both, (f"a change of subject between experts that look alike is noticed late: {size}",)


def dense_plan(plan: Plan) -> Plan:
    """Return the plan of one dense model made of the same trunk: what every member sees when tokens are forced."""
    translation = plan.lead.family.dense(plan.lead.architecture)
    recipe = plan.recipe.replace(to="dense")
    tensors = tuple(_tensors(plan.members, plan.base, recipe, plan.dtype, plan.lead, translation))
    return _carried(replace(plan, recipe=recipe, tensors=tensors), translation)


def _translation(lead: Member, host: str | None) -> Translation:
    hosts = lead.hosts
    if host is None:
        host = next(iter(hosts))
        if host == REMOTE_CODE:
            raise UnsupportedFamilyError(
                f"no native host carries {lead.version.ref} exactly: {lead.family.refusal(lead.architecture)}",
                "add --remote-code: the folder then carries a modelling file of its own",
            )
    if host not in hosts:
        raise UnsupportedFamilyError(
            f"host {host!r} does not carry {lead.version.ref} ({lead.family.model_type})",
            f"those that do: {', '.join(hosts)}",
        )
    return hosts[host]


def _tensors(
    members: Sequence[Member], base: Member | None, recipe: Recipe, dtype: str, lead: Member, translation: Translation
) -> Iterator[OutputTensor]:
    family, architecture, host = lead.family, lead.architecture, translation.host
    for name, made in translation.trunk.items():
        own = dtype if isinstance(made, Constant) else trunk_dtype(members, base, recipe, made.rows.name)
        yield OutputTensor(name, recipe.dtype or own, made)
    router = recipe.router_method
    if router is None:
        return
    for layer in range(architecture.num_hidden_layers):
        shape = (len(members), architecture.hidden_size)
        has_choice = len(members) > 1 or (router.is_linear and router.statistics != COUNTS)  # one has every token
        gate = Router(shape, layer) if has_choice else Constant(shape, 0.0)
        yield OutputTensor(host.tensor_name(layer, host.gate), dtype, gate, ROUTER)
        if host.gate_bias:
            bias = RouterBias((len(members),), layer)
            yield OutputTensor(host.tensor_name(layer, host.gate_bias), dtype, bias, ROUTER)
        whole = recipe.host == REMOTE_CODE
        parts = family.mlp_tensors(layer, architecture) if whole else family.projections(layer, architecture)
        for name, experts in host.experts.tensors(len(members), parts):
            dtypes = {
                members[member].version.ref: members[member].link("mlp", rows.name).dtype
                for member, rows in experts.parts
            }
            own = recipe.dtype or one_dtype(dtypes, f"tensor {name} has")
            yield OutputTensor(host.tensor_name(layer, name), own, experts, EXPERTS)


def trunk_dtype(members: Sequence[Member], base: Member | None, recipe: Recipe, name: str) -> str:
    """Return the dtype in which a tensor of the trunk is written (errors as `one_dtype`)."""
    method = trunk_of(recipe)
    contributors = [*(members if method.needs_members else ()), *([base] if base and method.needs_base else [])]
    if recipe.dtype:
        return str(recipe.dtype)
    dtypes = {member.version.ref: member.weight(name).dtype for member in contributors}
    return one_dtype(dtypes, f"tensor {name} has")


_BIAS_NOTE = (
    "its routers have a bias, which no native architecture carries: its modelling file does, and it loads with "
    "trust_remote_code=True"
)


def _has_router_bias(members: Sequence[Member], recipe: Recipe) -> bool:
    """Tell whether routers of trained rows add a number other than 0 to a logit, trained with a row or asked for."""
    if recipe.router_method is None or not recipe.router_method.is_trained:
        return False
    layers = range(members[0].architecture.num_hidden_layers)
    return any(recipe.bias.values()) or any(member.router_bias(layer) for member in members for layer in layers)


def _with_softmax_topk(translation: Translation, lead: Member, *, bias: bool) -> Translation:
    """Return the same translation with experts that keep the weights of the softmax; `bias`: routers have a bias."""
    host = translation.host
    if host.files:
        own = routed_host(lead.family, WHOLE_SOFTMAX, bias=bias, router_bias=bias, norm_topk_prob=False)
        return replace(translation, host=own)
    if not host.obeys_norm_topk_prob:
        fitting = [name for name, one in lead.hosts.items() if one.host.obeys_norm_topk_prob]
        remote = "--remote-code, a modelling file in the folder"
        raise UnsupportedFamilyError(
            f"host {host.model_type!r} makes the weights of a token's experts add up to 1, which gating "
            f"{SOFTMAX_TOPK!r} does not",
            f"choose --host {fitting[0]}, or {remote}" if fitting else f"add {remote}",
        )
    return replace(translation, host=replace(host, config=lambda *sizes: host.config(*sizes) | {NORM_TOPK_PROB: False}))


def context_cost(plan: Plan) -> RoutingCost | None:
    """Return what context routing adds to a plan, None if the plan has no such routing."""
    recipe = plan.recipe
    if recipe.router_method is None or recipe.router_method.statistics != COUNTS or len(plan.members) < 2:
        return None
    # Random routers need no statistics, and have the shapes of all routers that read the stream.
    plain = recipe.replace(router="random", top_k=top_k(recipe, len(plan.members)))
    without = make_plan(plan.members, plan.base, plain)
    mine, other = plan.parts.architecture, without.parts.architecture
    has_window = recipe.host == REMOTE_CODE or bool(context_windows(plan, without.parts)[0].slow)
    return RoutingCost(
        mine.num_hidden_layers - other.num_hidden_layers,
        any(isinstance(tensor.made, HeadMap | OwnHeadMap) for tensor in plan.tensors),
        mine.num_hidden_layers - 1,
        mine.hidden_size - other.hidden_size,
        float(recipe.context_window) if has_window else 0.0,
        plan.parameters - without.parameters,
        plan.nbytes - without.nbytes,
    )
