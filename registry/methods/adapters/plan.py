"""Plans of low-rank experts: each as it was trained, on a base model that nobody changes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from registry.checkpoint.version_files import ADAPTER, base_of_adapter
from registry.composition.compatibility import make_subset
from registry.composition.plan import EXPERTS, ROUTER, OutputTensor, Plan
from registry.composition.recipe.recipe import Recipe
from registry.composition.stored import Computed, Stored, held
from registry.errors import IncompatibleError, InvalidInputError
from registry.families.sites import TOKEN_COUNTS
from registry.hosts.context_mlp import ALARM
from registry.io.safetensors_file import Stream
from registry.io.torch_blocks import read_tensor, to_block, torch_dtype
from registry.maths import lora_delta
from registry.maths.context.prefix import FAST
from registry.member import Member
from registry.methods.adapters.host import ADAPTERS, MODELLING_FILE
from registry.methods.moe.context import evidence_of, limits_of
from registry.methods.whole_members import dense_settings, loading
from registry.workspace import Workspace
from store.arrays import Block
from store.catalog import VersionRecord

Kind = tuple[int, float, bool]
"""Rank and scaling of an expert in one layer, and whether it is DoRA; the rank is 0 where it changes nothing."""
_PARTS = ({"A", "B"}, {"A", "B", "magnitude"})
_NONE: Kind = (0, 1.0, False)


def config(plan: Plan) -> dict[str, Any]:
    """Return config.json: the base model's own, the members, what they change, and how a token's expert is chosen."""
    kinds, layers, members = list[Sequence[Kind]](), dict[str, int](), everyone(plan)
    nobody = [_NONE] * (len(members) - len(plan.members))
    for target, changed in _changes(plan.members).items():
        own = [*changed, *nobody]
        if own not in kinds:
            kinds.append(own)
        layers[_layer(plan.lead, target)] = kinds.index(own)
    window = float(plan.recipe.context_window)
    return {
        **dense_settings(plan.lead),
        **loading(plan, MODELLING_FILE.stem, "AdaptersConfig"),
        "members": [member.name for member in members],
        "adapted_layers": layers,
        "adapted_kinds": [[list(kind) for kind in own] for own in kinds],
        "context_window": window,
        "context_fast": FAST if window > FAST else 0.0,
        "context_alarm": ALARM,
        "vocab_size": plan.lead.architecture.vocab_size,
    }


def make_adapters(members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
    """Return the plan of `members`, adapters of one base model in any order, beside one another on it.

    Raises:
        InvalidInputError: no member, or a name twice.
        IncompatibleError: a member is no adapter, or changes what this output does not carry; or the base model is
            another's.
    """
    _check_adapters(members)
    subset = make_subset(members, base, recipe)
    assert subset.base is not None
    members, base = subset.members, subset.base
    for member in members:
        if (of := base_of_adapter(member.version)) != base.content["weights"]:
            raise IncompatibleError(
                f"{member.version.ref} is an adapter of a base model of weights {str(of)[:12]}, and {base.version.ref} "
                f"has {base.content['weights'][:12]}",
                "name the base model that all were registered with: --base NAME[@V]; or leave it out",
            )
    dtype = recipe.dtype or str(base.content["dtype"])
    plan = Plan(recipe, members, base, base, dtype, f"{ADAPTERS}{base.family.model_type}", "AdaptersForCausalLM", ())
    return replace(plan, tensors=tuple(_tensors(plan)))


def base_of(workspace: Workspace, members: Sequence[Member]) -> VersionRecord:
    """Return the registered base model that members are adapters of: the newest, one that counted its own text first.

    Raises:
        IncompatibleError: they are of several, it is not registered any more, or a member is no adapter.
        InvalidInputError: there is no member.
    """
    _check_adapters(members)
    if not members:
        raise InvalidInputError("a composition needs at least one expert", "name some: --experts code,math")
    first, *others = sorted(members, key=lambda member: member.name)
    digest = base_of_adapter(first.version)
    if other := next((one for one in others if base_of_adapter(one.version) != digest), None):
        raise IncompatibleError(
            f"{first.version.ref} and {other.version.ref} are adapters of different base models, {str(digest)[:12]} "
            f"and {str(base_of_adapter(other.version))[:12]}",
            "compose adapters of one base model",
        )
    found = [one for one in workspace.versions(kind="base") if (one.content or {}).get("weights") == digest]
    if not found:
        raise IncompatibleError(
            f"{first.version.ref} is an adapter of a base model of weights {str(digest)[:12]}, and none is "
            "registered here",
            "register it: reg add-base NAME CKPT",
        )
    return max(found, key=lambda one: (bool(one.statistics), one.created_at))


def everyone(plan: Plan) -> tuple[Member, ...]:
    """Return whom a token may go to: the members, and last the base model, if it counted text of its own."""
    return (*plan.members, *([plan.lead] if plan.lead.has_statistics(TOKEN_COUNTS) else []))


def _check_adapters(members: Sequence[Member]) -> None:
    for member in members:
        if not member.is_adapter:
            raise IncompatibleError(
                f"{member.version.ref} is no adapter of a registered base model: it was registered as a whole model",
                f"register the adapter: reg add-expert {member.name} ADAPTER --base NAME --data FILE; or --to moe",
            )
        for target, parts in member.merged.changes.items():
            if parts.keys() not in _PARTS or target == member.family.own_head(member.architecture):
                raise IncompatibleError(
                    f"{member.version.ref} changes {target} by {', '.join(sorted(parts))}, and this output carries "
                    "LoRA and DoRA of linear layers",
                    "choose --to moe or --to ensemble",
                )


def _layer(base: Member, target: str) -> str:
    """Return the module whose weight a tensor is, as transformers names it."""
    return base.family.renamed.get(target, target).removesuffix(".weight")


def _changes(members: Sequence[Member]) -> dict[str, list[Kind]]:
    """Return what each member does to every tensor that one of them changes, in the base's order."""
    changed = {target for member in members for target in member.merged.changes}
    return {target: [_kind(member, target) for member in members] for target in members[0].shapes if target in changed}


def _kind(member: Member, target: str) -> Kind:
    parts = member.merged.changes.get(target)
    return _NONE if parts is None else member.merged.adapter.kind(parts)


def _tensors(plan: Plan) -> Iterator[OutputTensor]:
    """Yield the base model's tensors, the experts' factors, and the evidence that chooses among them."""
    base, members, own = plan.lead, plan.members, plan.recipe.dtype
    for link in base.arrays:
        if link.role in ("trunk", "mlp"):
            name = base.family.renamed.get(link.name, link.name)
            yield OutputTensor(name, own or link.dtype, Stored(base, link.role, link.name))
    for target, kinds in _changes(members).items():
        layer = _layer(base, target)
        for part in ("A", "B"):
            made = Factors(members, target, part)
            yield OutputTensor(f"{layer}.lora_{part}", own or made.dtype, made, EXPERTS)
        if dora := [member for member, kind in zip(members, kinds, strict=True) if kind[2]]:
            shape = len(dora), base.weight(target).shape[0]
            compute = partial(_norms, dora, target)
            yield OutputTensor(f"{layer}.lora_magnitude", own or "float32", Computed(shape, compute), EXPERTS)
    routed = replace(plan, members=everyone(plan))
    experts, rows = len(routed.members), base.architecture.vocab_size
    yield OutputTensor("evidence", "float32", Computed((rows, experts), partial(evidence_of, routed)), ROUTER)
    yield OutputTensor("thresholds", "float32", Computed((experts, experts), partial(limits_of, routed)), ROUTER)


@dataclass(frozen=True)
class Factors:
    """The factors A of all members, one below the other, (R, I), or their B one after the other, each row by row."""

    members: tuple[Member, ...]
    target: str
    part: str

    @property
    def dtype(self) -> str:
        """The dtype that all have; float32, which holds the others exactly, where they have several."""
        dtypes = {source.dtype for source in self._sources}
        return dtypes.pop() if len(dtypes) == 1 else "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        shapes = [source.shape for source in self._sources]
        if self.part == "B":
            return (sum(outputs * rank for outputs, rank in shapes),)
        return sum(rank for rank, _ in shapes), shapes[0][1]

    def stream(self, name: str, dtype: str) -> Stream:
        """Return it as it is written."""

        def blocks() -> Iterator[Block]:
            for source in self._sources:
                factor = read_tensor(source).to(torch_dtype(dtype))
                yield from held([to_block(factor.flatten() if self.part == "B" else factor)], dtype, name)

        return Stream(name, dtype, self.shape, blocks)

    @property
    def _sources(self) -> list[Any]:
        changes = [(member, member.merged.changes.get(self.target)) for member in self.members]
        return [
            member.open(ADAPTER, member.merged.adapter.names[parts[self.part]])
            for member, parts in changes
            if parts is not None
        ]


def _norms(members: Sequence[Member], target: str) -> Tensor:
    """Return m / |W + s B A| of members that are DoRA, float32 of shape (members, O) (DoRA, Liu et al. 2024, eq. 5)."""
    rows = []
    for member in members:
        parts: Mapping[str, str] = member.merged.changes[target]
        tensors = {
            part: read_tensor(member.open(ADAPTER, member.merged.adapter.names[one])) for part, one in parts.items()
        }
        weight = read_tensor(member.merged.base.source(target))
        total = weight + lora_delta(tensors["A"], tensors["B"], _kind(member, target)[1])
        rows.append(tensors["magnitude"].float() / torch.linalg.norm(total, dim=1))
    return torch.stack(rows)
