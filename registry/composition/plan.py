"""The plan of a composition: members, host, every tensor and how it is made."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from registry.composition.compatibility import (
    check_statistics,
    common_dtype,
    equal_mlp_notes,
    length_notes,
    make_subset,
)
from registry.composition.recipe import Recipe
from registry.composition.recipe.recipe_fields import SHARED, SOFTMAX_TOPK, TOPK_SOFTMAX
from registry.composition.taken_files import taken_notes
from registry.composition.trained.trained_parts import EQUAL_COPIES
from registry.errors import IncompatibleError, UnsupportedFamilyError
from registry.families import Translation
from registry.hosts import Constant, Experts, Host
from registry.hosts.context import MEAN, SHARPNESS, ContextLayout, ContextWindows, notices
from registry.hosts.context_mlp import ALARM
from registry.hosts.head_map import holds_maps
from registry.hosts.host import LAYERS
from registry.hosts.remote_code import (
    CONTEXT_ALARM,
    CONTEXT_FAST,
    CONTEXT_SHARPNESS,
    CONTEXT_WINDOW,
    EVIDENCE_TENSOR,
    HEAD_MAPS,
    REMOTE_CODE,
    THRESHOLDS_TENSOR,
    context_code_host,
    own_head_maps,
)
from registry.hosts.tensors import Entries, Evidence, Made, Router, RouterBias
from registry.maths.context.prefix import FAST
from registry.maths.context.rotary import recency_amplitudes, rotary_tables
from registry.maths.router import COUNTS, ROUTERS, balanced
from registry.maths.trunk import TRUNKS
from registry.member import Member
from registry.methods.moe.pass_memory import pass_bytes, rendered_elements
from registry.methods.moe.special_routers import (
    has_router_bias,
    host_of_bias,
    with_router_bias,
    with_softmax_topk,
)
from store.arrays import CARRIERS
from store.digest import json_digest

DOCUMENT_FORMAT = 1

TRUNK, EXPERTS, ROUTER = "trunk", "experts", "routers"
"""Parts of a model, which are files of their own where it is large."""


@dataclass(frozen=True)
class OutputTensor:
    """One tensor of the folder: its host name, its dtype, how it is made, and which part of the model it is."""

    name: str
    dtype: str
    made: Made
    part: str = TRUNK

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.made.shape

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * CARRIERS[self.dtype][1]


@dataclass(frozen=True)
class Plan:
    """A composition to be.

    Attributes:
        members: in name order, which is the order of the experts.
        base: the base model, where the trunk method needs it.
        recipe: how they are combined.
        dtype: what config.json says of the weights.
        lead: the member whose tokenizer and settings the folder takes over: the first with the largest vocabulary.
        translation: how the host carries it.
        tensors: every tensor, layer by layer.
    """

    members: tuple[Member, ...]
    base: Member | None
    recipe: Recipe
    dtype: str
    lead: Member
    translation: Translation
    tensors: tuple[OutputTensor, ...]

    @property
    def weights(self) -> list[float]:
        """ω of each member, in their order."""
        return [float(self.recipe.weights.get(name, 1.0)) for name in self.names]

    @property
    def coefficients(self) -> list[float]:
        """α of each member, in their order; empty where the recipe has none."""
        return [float(self.recipe.coefficients[name]) for name in self.names if self.recipe.coefficients]

    @property
    def statistics_weights(self) -> list[float]:
        """Factors of the members' statistics: ω, and where tokens are balanced times the mean count over their own."""
        if self.recipe.balance == "none":
            return self.weights
        return balanced(self.weights, [member.tokens for member in self.members])

    @property
    def host(self) -> Host:
        """The architecture that will carry it."""
        return self.translation.host

    @property
    def model_type(self) -> str:
        """The `model_type` written to config.json."""
        return self.host.model_type

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the result for its user."""
        equal = [EQUAL_COPIES] if self.from_base else equal_mlp_notes(self.members) if self.recipe.to == "moe" else []
        return (*self.translation.notes, *equal, *length_notes(self.members), *taken_notes(self.members, self.lead))

    @property
    def names(self) -> list[str]:
        """The members' names, in order."""
        return [member.name for member in self.members]

    @property
    def from_base(self) -> int | None:
        """The number of members where they are copies of the base model; None where they are versions of their own."""
        return None if self.lead.copy is None else len(self.members)

    @property
    def parameters(self) -> int:
        """Weights in all."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def active_parameters(self) -> int:
        """Weights that take part in one token: the trunk, the routers and top_k experts."""
        experts = sum(math.prod(tensor.shape) for tensor in self.tensors if tensor.part == EXPERTS)
        return (
            self.parameters - experts + experts // len(self.members) * self.recipe.experts_per_token(len(self.members))
        )

    @property
    def nbytes(self) -> int:
        """Bytes of weights that will be written."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def peak_bytes(self) -> int:
        """An upper estimate of the memory that composing on one thread takes beyond the program itself.

        Each further thread takes `rendering_bytes` more, as far as half of the free memory allows. Where tokens run
        through models, the largest of these is in memory too, with the statistics that it gives; of a refit one layer,
        one batch of tokens and the sums of one step are.
        """
        return self.rendering_bytes + pass_bytes(self.recipe, self.members, self.lead, self.nbytes)

    @property
    def rendering_bytes(self) -> int:
        """An upper estimate of the memory that one thread takes to compute tensors.

        One layer's Gram workspace (five matrices of 8-byte numbers: a member's triangle as read and as decoded, the
        sum, its factor, and room of the solution) and one block of a tensor (in float64, widened and rounded, beside
        what each member contributes, as read and as decoded). Both count: what one frees is not always there for the
        other.
        """
        architecture = self.translation.architecture
        widest = architecture.hidden_size
        if TRUNKS[self.recipe.trunk].needs_inputs:
            widest = max(widest, architecture.num_attention_heads * architecture.head_dim)
        gram = 5 * 8 * (widest + 1) ** 2
        elements = max(rendered_elements(tensor.made) for tensor in self.tensors)
        contributed = 2 * CARRIERS[self.dtype][1] * (len(self.members) + (self.base is not None))
        return gram + (3 * 8 + contributed) * elements

    @cached_property
    def document(self) -> dict[str, Any]:
        """Recipe, names and content digests: all that the composition is a function of."""
        return {
            "format": DOCUMENT_FORMAT,
            **({} if self.from_base is None else {"from_base": self.from_base}),
            "host": self.host.model_type,
            "recipe": self.recipe.document(self.names),
            "members": [{"name": m.name, "digest": m.version.digest} for m in self.members],
            "base": None if self.base is None else {"name": self.base.name, "digest": self.base.version.digest},
        }

    @property
    def digest(self) -> str:
        """The composition's digest."""
        return json_digest(self.document)


def make_plan(members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
    """Return the plan of composing `members` (in any order) by `recipe`.

    Args:
        members: active versions of different experts.
        base: the base model where `recipe.trunk` needs one; it takes no part otherwise.
        recipe: how.

    Raises:
        InvalidInputError: no member, a name twice, or a recipe that does not fit them.
        IncompatibleError: members differ in what must agree; the message says in what, and who from whom.
        UnsupportedFamilyError: the host asked for does not carry them.
    """
    subset = make_subset(members, base, recipe)
    check_statistics(subset.members, recipe)
    lead = subset.lead
    if is_biased := has_router_bias(subset.members, recipe):
        recipe = replace(recipe, host=host_of_bias(recipe.host))
    translation = lead.family.dense(lead.architecture) if recipe.to == "dense" else _translation(lead, recipe.host)
    if is_biased:
        translation = with_router_bias(translation, lead)
    if recipe.gating == SOFTMAX_TOPK:
        translation = with_softmax_topk(translation, lead, bias=is_biased)
    dtype = recipe.dtype or common_dtype(subset.members)
    tensors = tuple(_tensors(subset.members, subset.base, recipe, dtype, lead, translation))
    plan = Plan(subset.members, subset.base, recipe, dtype, lead, translation, tensors)
    if recipe.to != "moe" or ROUTERS[recipe.router].features != COUNTS:
        return plan
    return with_context(plan) if len(plan.members) > 1 else replace(plan, tensors=tuple(map(_no_choice, tensors)))


def _no_choice(tensor: OutputTensor) -> OutputTensor:
    """Return a router of one member, which is made from no counts, as zeros; another tensor as it is."""
    return replace(tensor, made=Constant(tensor.shape, 0.0)) if isinstance(tensor.made, Router) else tensor


def with_context(plan: Plan) -> Plan:
    """Return a plan with the context layer that its routers read, and the channels that it needs.

    Raises:
        UnsupportedFamilyError: the host cannot carry a context layer for so many members.
    """
    recipe, translation = plan.recipe, plan.translation
    if recipe.host == REMOTE_CODE:
        return _with_evidence(plan)
    windows, notes = context_windows(translation, recipe.context_window)
    maps, more = _head_maps(translation, recipe)
    try:
        layout = ContextLayout(translation.host, translation.architecture, len(plan.members), windows, maps=maps)
    except ValueError as error:
        raise UnsupportedFamilyError(
            f"--router context cannot be used here: {error}",
            "choose --router ridge, or add --remote-code: the folder then carries a modelling file of its own",
        ) from error
    dtypes = {layout.name(tensor.name): tensor.dtype for tensor in plan.tensors if tensor.part == TRUNK}
    trunk = layout.trunk(translation.trunk)
    tensors = [OutputTensor(name, dtypes.get(name, plan.dtype), made) for name, made in trunk.items()]
    last: list[OutputTensor] = []
    for tensor in plan.tensors:
        name, dtype, made = tensor.name, tensor.dtype, tensor.made
        if isinstance(made, Router):
            if made.layer == 0:
                tensors.append(OutputTensor(name, dtype, layout.no_gate(), ROUTER))
            tensors.append(OutputTensor(layout.name(name), dtype, layout.gate(recipe.temperature), ROUTER))
            if layout.is_copied_last(name):
                last.append(OutputTensor(layout.last_name(name), dtype, layout.gate(recipe.temperature), ROUTER))
        elif isinstance(made, Experts):
            if name.startswith(f"{LAYERS}.0."):
                tensors.append(OutputTensor(name, dtype, layout.own_experts(name, made), EXPERTS))
            tensors.append(OutputTensor(layout.name(name), dtype, layout.experts(made), EXPERTS))
            if layout.is_copied_last(name):
                last.append(OutputTensor(layout.last_name(name), dtype, layout.last_experts(name, made), EXPERTS))
    if translation.host.context and translation.host.context.fixed_heads:
        limit = f"transformers 4 derives the size of {translation.host.model_type}'s heads from its hidden size"
        notes = (*notes, f"{limit}, and cannot load a context layer: use transformers 5")
    carried = replace(translation, architecture=layout.architecture, notes=(*translation.notes, *notes, *more))
    return replace(plan, translation=carried, tensors=(*tensors, *last))


def _head_maps(translation: Translation, recipe: Recipe) -> tuple[bool, tuple[str, ...]]:
    """Return whether a composition has head maps, and remarks."""
    if recipe.vocabulary == SHARED or translation.host.context is None:
        return False, ()
    if holds_maps(translation.host.context, translation.architecture):
        return True, ()
    return False, ("its MLPs are too narrow for head maps, or their activation is of another kind: the head is shared",)


def _with_evidence(plan: Plan) -> Plan:
    """Return a plan for a modelling file that averages evidence by itself: no router, and head maps as they are."""
    family, recipe, translation = plan.lead.family, plan.recipe, plan.translation
    fast = FAST if recipe.context_window > FAST else 0.0
    settings = {
        CONTEXT_WINDOW: float(recipe.context_window),
        CONTEXT_FAST: fast,
        CONTEXT_ALARM: ALARM,
        CONTEXT_SHARPNESS: SHARPNESS * MEAN / recipe.temperature,
        HEAD_MAPS: recipe.vocabulary != SHARED,
    }
    carried = replace(
        translation,
        host=context_code_host(family.model_type, family.class_name, family.layers),
        architecture=translation.architecture.with_options(**settings),
    )
    experts, sizes = len(plan.members), translation.architecture
    maps = own_head_maps(experts, sizes.hidden_size, bias=family.head_input(sizes).bias)
    thresholds = tuple(((e, n), (e, n), 1.0) for e in range(experts) for n in range(experts))
    tensors = (
        *(tensor for tensor in plan.tensors if not isinstance(tensor.made, Router)),
        OutputTensor(EVIDENCE_TENSOR, "float32", Evidence((sizes.vocab_size, experts)), ROUTER),
        OutputTensor(THRESHOLDS_TENSOR, "float32", Entries((experts, experts), thresholds=thresholds), ROUTER),
        *(OutputTensor(name, plan.dtype, made, EXPERTS) for name, made in maps.items() if settings[HEAD_MAPS]),
    )
    return replace(plan, translation=carried, tensors=tensors)


def context_windows(translation: Translation, tau: float) -> tuple[ContextWindows, tuple[str, ...]]:
    """Return the windows of a context layer, and remarks.

    Args:
        translation: how the host carries the members.
        tau: τ in tokens, 0 for the whole text so far.
    """
    kind, architecture = translation.host.context, translation.architecture
    if not tau or kind is None:
        return ContextWindows(), ()
    rotary = rotary_tables(architecture.rope_parameters, architecture.head_dim, architecture.max_position_embeddings)
    slow = recency_amplitudes(rotary, float(tau))
    if slow is None:
        note = f"its rope cannot weigh the past by a window of {tau:g} tokens: routers read the mean of the whole text"
        return ContextWindows(), (note,)
    windows = ContextWindows(tuple(slow.tolist()), factor=rotary.factor)
    fast = recency_amplitudes(rotary, FAST) if tau > FAST else None
    if fast is None:
        return windows, ()
    both = replace(windows, fast=tuple(fast.tolist()))
    return (both if notices(kind, architecture, both) else windows), ()


def dense_plan(plan: Plan) -> Plan:
    """Return the plan of one dense model made of the same trunk: what every member sees when tokens are forced."""
    translation = plan.lead.family.dense(plan.lead.architecture)
    recipe = replace(plan.recipe, to="dense", refine=0, refine_mlp=False, gating=TOPK_SOFTMAX, host=None)
    tensors = tuple(_tensors(plan.members, plan.base, recipe, plan.dtype, plan.lead, translation))
    return replace(plan, recipe=recipe, translation=translation, tensors=tensors)


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
    for layer in range(architecture.num_hidden_layers if recipe.to == "moe" else 0):
        shape = (len(members), architecture.hidden_size)
        solved = ROUTERS[recipe.router].solve is not None or len(members) > 1
        gate = Router(shape, layer) if solved else Constant(shape, 0.0)  # one expert has every token
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
            yield OutputTensor(host.tensor_name(layer, name), recipe.dtype or _one(name, dtypes), experts, EXPERTS)


def trunk_dtype(members: Sequence[Member], base: Member | None, recipe: Recipe, name: str) -> str:
    """Return the dtype in which a tensor of the trunk is written.

    Raises:
        IncompatibleError: it is made from tensors of different dtypes, and the recipe has none.
    """
    method = TRUNKS[recipe.trunk]
    contributors = [*(members if method.needs_members else ()), *([base] if base and method.needs_base else [])]
    if recipe.dtype:
        return recipe.dtype
    return _one(name, {member.version.ref: member.weight(name).dtype for member in contributors})


def _one(name: str, dtypes: dict[str, str]) -> str:
    if len(set(dtypes.values())) > 1:
        listed = ", ".join(f"{ref} {dtype}" for ref, dtype in dtypes.items())
        raise IncompatibleError(f"tensor {name} has different dtypes ({listed})", "choose one: --dtype bfloat16")
    return next(iter(dtypes.values()))
