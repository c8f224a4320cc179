"""Plans of low-rank experts: each as it was trained, on a base model that nobody changes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from registry.calibration.calibration import Turns
from registry.checkpoint.version_files import base_of_adapter
from registry.composition.compatibility import make_subset
from registry.composition.low_rank import NONE, Change, Changes, Kind, Ranks, changes_of, choose_ranks
from registry.composition.plan import EXPERTS, ROUTER, OutputTensor, Plan
from registry.composition.recipe.recipe import Recipe
from registry.composition.recipe.shared_options import KEPT
from registry.composition.stored import Computed, Stored, held
from registry.errors import IncompatibleError
from registry.families.sites import TOKEN_COUNTS
from registry.hosts.context_mlp import ALARM
from registry.io.display import few
from registry.io.safetensors_file import Stream
from registry.io.torch_blocks import read_tensor, to_block, torch_dtype
from registry.maths.context.prefix import FAST
from registry.member import Member
from registry.methods.adapters.host import ADAPTERS, MODELLING_FILE
from registry.methods.moe.context import evidence_of, limits_of, pairs_of, turns_of
from registry.methods.whole_members import dense_settings, loading
from registry.workspace import Workspace
from store.arrays import ArraySource, Block
from store.catalog import VersionRecord

PAIRS = ("pairs", "pair_experts", "pair_evidence")
"""Tensors of what pairs of tokens add to evidence."""


@dataclass(frozen=True)
class Parts:
    """Changes of each member as they were trained, and the ranks of those that were trained in full.

    Attributes:
        pairs: what pairs of tokens add to evidence (`pairs_of`); None where somebody counted none.
        low_rank: matrix → the change of each member, in the base's order; None of one that does not change it.
        vectors: norm or bias → member's number → its own, in the base's order.
    """

    changes: tuple[Changes, ...]
    ranks: Ranks
    low_rank: Mapping[str, tuple[Change | None, ...]]
    vectors: Mapping[str, Mapping[int, ArraySource]]
    pairs: tuple[Tensor, Tensor, Tensor] | None = None


def config(plan: Plan) -> dict[str, Any]:
    """Return config.json: the base model's own, the members, what they change, and how a token's expert is chosen."""
    kinds, layers, members = list[Sequence[Kind]](), dict[str, int](), everyone(plan)
    parts: Parts = plan.parts
    nobody = [NONE] * (len(members) - len(plan.members))
    for target, changed in parts.low_rank.items():
        own = [*(NONE if one is None else one.kind for one in changed), *nobody]
        if own not in kinds:
            kinds.append(own)
        layers[_layer(plan.lead, target)] = kinds.index(own)
    window, turns = float(plan.recipe.context_window), turns_of(plan)
    user = _before_user(turns) if turns else []
    between = {turns.between: None, turns.after: None} if turns else {}
    return {
        **dense_settings(plan.lead),
        **loading(plan, MODELLING_FILE.stem, "AdaptersConfig"),
        "members": [member.name for member in members],
        "adapted_layers": layers,
        "adapted_kinds": [[list(kind) for kind in own] for own in kinds],
        "adapted_vectors": {_named(plan.lead, name): list(own) for name, own in parts.vectors.items()},
        "context_window": window,
        "context_fast": FAST if window > FAST else 0.0,
        "context_alarm": ALARM,
        "context_pairs": 0 if parts.pairs is None else len(parts.pairs[0]),
        "context_prefix": list(turns.before) if turns else [],
        "context_turns": [list(turn) for turn in between if turn and turn[0] in turns.special] if turns else [],
        "context_next": _before_questions(turns) if turns else [],
        "context_user": user,
        "context_form": _behind(members, plan.lead) if user else [],
        "context_nobody": len(plan.members) if nobody else None,
        "routing_top_k": plan.output.top_k(plan.recipe, len(plan.members)),
        "vocab_size": plan.lead.architecture.vocab_size,
    }


def _before_questions(turns: Turns) -> list[int]:
    """Return the tokens between an answer and the next question, if nothing else has them."""
    after, between = list(turns.after), list(turns.between)
    is_also_in_others = any(between[at : at + len(after)] == after for at in range(len(between)))
    return after if after and after[0] in turns.special and not is_also_in_others else []


def _before_user(turns: Turns) -> list[int]:
    """Return the tokens before each message of a user, from a special one on; none where no special one tells."""
    before, after = turns.before, turns.after or turns.before
    for start in range(len(before) - 1, -1, -1):
        if before[start:] != after[start - len(before) :]:
            break
        if before[start] in turns.special:  # the last of them: others are not before every message
            return list(before[start:])
    return []


OTHER_FORM = 5.0
"""Most nats that the form of a text tells against an expert: one text in 148 may be of a form that none had.

*Measured* (three domains of documents and four skills of a chat model, losses of 28 windows of each domain): scores
of 98.5, 98.6 and 99.4 without, 99.5, 98.7 and 99.5 with 5 nats, 99.7, 98.7 and 99.5 with 8. Questions of these skills
without a template find their expert, all 60 of each, with 8 nats too.
"""


def _behind(members: Sequence[Member], base: Member) -> list[float]:
    """Return by how many nats each is behind in a document, by the share of documents in its text; [] if none is.

    The base model, which was trained on everything, is not.
    """
    shares = [1.0 if member is base else member.document_share for member in members]
    found = [min(OTHER_FORM, abs(math.log(share))) if share else OTHER_FORM for share in shares]
    return found if any(found) else []


def make_adapters(members: Sequence[Member], base: Member | None, recipe: Recipe) -> Plan:
    """Return the plan of `members`, experts of one base model in any order, beside one another on it.

    Of an expert that was trained in full every matrix is read, to choose ranks.

    Raises:
        InvalidInputError: no member, or a name twice.
        IncompatibleError: a member changes what this output does not carry, or is an adapter of another base model.
        DamagedError: a stored array is damaged.
    """
    subset = make_subset(members, base, recipe)
    assert subset.base is not None
    members, base = subset.members, subset.base
    for member in members:
        if member.version.kind == "base":
            raise IncompatibleError(
                f"{member.version.ref} is a base model, which takes what no expert knows without being named",
                "leave it out of --experts",
            )
        member.require_statistics([TOKEN_COUNTS], "--to adapters", "needs")
        if member.is_adapter and (of := base_of_adapter(member.version)) != base.content["weights"]:
            raise IncompatibleError(
                f"{member.version.ref} is an adapter of a base model of weights {str(of)[:12]}, and {base.version.ref} "
                f"has {base.content['weights'][:12]}",
                "name the base model that all were registered with: --base NAME[@V]; or leave it out",
            )
    dtype = recipe.dtype or str(base.content["dtype"])
    model_type, class_name = f"{ADAPTERS}{base.family.model_type}", "AdaptersForCausalLM"
    plan = Plan(recipe, members, base, base, dtype, model_type, class_name, (), _parts(members, base, recipe))
    found = pairs_of(replace(plan, members=everyone(plan)))
    plan = replace(plan, parts=replace(plan.parts, pairs=found))
    return replace(plan, tensors=tuple(_tensors(plan)))


def base_of(workspace: Workspace, members: Sequence[Member]) -> VersionRecord | None:
    """Return the registered base model that members are adapters of.

    Of a name it is the newest version, one that counted its own text first; of several names with the same weights the
    one that counted most. None if no member is an adapter (IncompatibleError: they are of several, or it is not
    registered any more).
    """
    adapters = sorted((member for member in members if member.is_adapter), key=lambda member: member.name)
    if not adapters:
        return None
    first, *others = adapters
    digest = base_of_adapter(first.version)
    bases = {(one.content or {}).get("weights"): one.ref for one in workspace.versions(kind="base")}
    if other := next((one for one in others if base_of_adapter(one.version) != digest), None):
        named = [bases.get(one, f"weights {str(one)[:12]}") for one in (digest, base_of_adapter(other.version))]
        raise IncompatibleError(
            f"{first.version.ref} and {other.version.ref} are adapters of different base models, {named[0]} and "
            f"{named[1]}",
            "compose adapters of one base model",
        )
    found = [one for one in workspace.versions(kind="base") if (one.content or {}).get("weights") == digest]
    if not found:
        raise IncompatibleError(
            f"{first.version.ref} is an adapter of a base model of weights {str(digest)[:12]}, and none is "
            "registered here",
            "register it: reg add-base NAME CKPT",
        )
    newest = {one.name: one for one in sorted(found, key=lambda one: (bool(one.statistics), one.created_at))}
    return max(newest.values(), key=lambda one: (sum(each.tokens for each in one.statistics), one.created_at))


def everyone(plan: Plan) -> tuple[Member, ...]:
    """Return whom a token may go to: the members, and last the base model, if it counted text of its own.

    With `no_base_member` the base model is left out.
    """
    has_base = plan.lead.has_statistics(TOKEN_COUNTS) and not plan.recipe.no_base_member
    return (*plan.members, *([plan.lead] if has_base else []))


def added_parameters(plan: Plan) -> list[int]:
    """Return the weights that each member adds to the base model's."""
    shapes, numbers = plan.lead.shapes, [0] * len(plan.members)
    for target, every in plan.parts.low_rank.items():
        for number, one in enumerate(every):
            if one is not None:
                numbers[number] += one.kind[0] * sum(shapes[target]) + one.kind[2] * shapes[target][0]
    for target, own in plan.parts.vectors.items():
        for number in own:
            numbers[number] += math.prod(shapes[target])
    return numbers


def truncation_bytes(plan: Plan) -> int:
    """Return an upper estimate of the memory that the largest decomposition takes: two copies of ΔW and three m × m."""
    shapes = [plan.lead.shapes[name] for own in plan.parts.changes for name in own.whole]
    return max((8 * (2 * math.prod(shape) + 3 * min(shape) ** 2) for shape in shapes), default=0)


def ranks_note(plan: Plan) -> Iterator[str]:
    """Yield a note on the experts that were trained in full: what is kept of them, if there are any.

    Without any, one on options that are for them.
    """
    ranks, names = plan.parts.ranks, plan.names
    given = [name for name in ("rank", "max_bytes") if getattr(plan.recipe, name) is not None]
    if given and not any(ranks.by_member):
        yield f"{given[0]} changes nothing: adapters keep their ranks, and no matrix was trained in full"
    chosen = {name: own for name, own in zip(names, ranks.by_member, strict=True) if own}
    if chosen:
        kept = [f"{name} {share:.1%}" for name, share in zip(names, ranks.kept, strict=True) if name in chosen]
        every = [rank for own in chosen.values() for rank in own.values()]
        yield (
            f"matrices that were trained in full have ranks from {min(every):,} to {max(every):,}, which keep of an "
            f"expert's change of the base model, in squares of weights: {', '.join(kept)}"
        )


def pairs_note(plan: Plan) -> str:
    """Return a note on members that were registered before pairs of tokens were counted."""
    lacking = [member.version.ref for member in everyone(plan) if member.pair_counts is None]
    again = f"register {'it' if len(lacking) == 1 else 'them'} again, with --data"
    return f"all are told apart by single tokens, as {few(lacking)} counted no pairs of them: {again}"


FEW_TOKENS = 4096
"""Of a member whose text has fewer, much text goes to the base model: with 2,048 a score of 91, with 512 of 77."""


def few_tokens_note(plan: Plan) -> Iterator[str]:
    """Yield a note on members that counted little text beside a base model that takes what they do not know."""
    counted = {member.version.ref: int(member.evidence_counts.sum()) for member in plan.members}
    small = [f"{ref} ({count:,})" for ref, count in counted.items() if count < FEW_TOKENS]
    if small and len(everyone(plan)) > len(plan.members):
        yield (
            f"few tokens were counted of {few(small)}: much of such text goes to the base model; register with more "
            "text, or leave it out: --no-base-member"
        )


def _layer(base: Member, target: str) -> str:
    """Return the module whose weight a tensor is, as transformers names it."""
    return _named(base, target).removesuffix(".weight")


def _named(base: Member, target: str) -> str:
    """Return a tensor's name in transformers."""
    return base.family.renamed.get(target, target)


def _parts(members: Sequence[Member], base: Member, recipe: Recipe) -> Parts:
    changes = tuple(changes_of(member, base) for member in members)
    ranks = choose_ranks([own.whole for own in changes], rank=recipe.rank, nbytes=recipe.max_bytes, share=KEPT)

    def change(number: int, target: str) -> Change | None:
        if rank := ranks.by_member[number].get(target, 0):
            return changes[number].whole[target].truncated(rank)
        return changes[number].low_rank.get(target)

    low_rank = {target: tuple(change(number, target) for number in range(len(members))) for target in base.shapes}
    vectors = {
        target: {number: own.vectors[target] for number, own in enumerate(changes) if target in own.vectors}
        for target in base.shapes
    }
    return Parts(
        changes,
        ranks,
        {target: own for target, own in low_rank.items() if any(own)},
        {target: own for target, own in vectors.items() if own},
    )


def _tensors(plan: Plan) -> Iterator[OutputTensor]:
    """Yield the base model's tensors, the experts' factors, and the evidence that chooses among them."""
    base, own = plan.lead, plan.recipe.dtype
    parts: Parts = plan.parts
    for link in base.arrays:
        if link.role in ("trunk", "mlp"):
            yield OutputTensor(_named(base, link.name), own or link.dtype, Stored(base, link.role, link.name))
    for target, every in parts.low_rank.items():
        changes, shape, layer = [one for one in every if one], base.shapes[target], _layer(base, target)
        for part in ("A", "B"):
            made = Factors(changes, shape, part)
            yield OutputTensor(f"{layer}.lora_{part}", own or made.dtype, made, EXPERTS)
        if dora := [one for one in changes if one.kind[2]]:
            norms = Computed((len(dora), shape[0]), partial(_read, dora, "magnitude"))
            yield OutputTensor(f"{layer}.lora_magnitude", own or "float32", norms, EXPERTS)
    for target, vectors in parts.vectors.items():
        sources = list(vectors.values())
        layer, _, part = _named(base, target).rpartition(".")
        dtypes = {source.dtype for source in sources}
        dtype = own or (dtypes.pop() if len(dtypes) == 1 else "float32")
        stacked = Computed((len(sources), *base.shapes[target]), partial(_stacked, sources))
        yield OutputTensor(f"{layer}.own_{part}", dtype, stacked, EXPERTS)
    routed = replace(plan, members=everyone(plan))
    experts, rows = len(routed.members), base.architecture.vocab_size
    evidence, limits = partial(evidence_of, routed, in_place=True), partial(limits_of, routed, in_place=True)
    yield OutputTensor("evidence", "float32", Computed((rows, experts), evidence), ROUTER)
    yield OutputTensor("thresholds", "float32", Computed((experts, experts), limits), ROUTER)
    if parts.pairs is not None and len(parts.pairs[0]):
        for name, dtype, pair in zip(PAIRS, ("int64", "int16", "float32"), parts.pairs, strict=True):
            yield OutputTensor(name, dtype, Computed(tuple(pair.shape), partial(torch.clone, pair)), ROUTER)


@dataclass(frozen=True)
class Factors:
    """The factors A of changes, one below the other, (R, I), or their B one after the other, each row by row.

    Attributes:
        outputs_inputs: (O, I).
    """

    changes: Sequence[Change]
    outputs_inputs: tuple[int, ...]
    part: str

    @property
    def dtype(self) -> str:
        """The dtype that all have; float32, which holds the others exactly, where they have several."""
        dtypes = {one.dtype for one in self.changes}
        return dtypes.pop() if len(dtypes) == 1 else "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ranks, (outputs, inputs) = sum(one.kind[0] for one in self.changes), self.outputs_inputs
        return (ranks * outputs,) if self.part == "B" else (ranks, inputs)

    def stream(self, name: str, dtype: str) -> Stream:
        """Return it as it is written."""

        def blocks() -> Iterator[Block]:
            for one in self.changes:
                factor = one.read(self.part).to(torch_dtype(dtype))
                yield from held([to_block(factor.flatten() if self.part == "B" else factor)], dtype, name)

        return Stream(name, dtype, self.shape, blocks)


def _read(changes: Sequence[Change], part: str) -> Tensor:
    return torch.stack([one.read(part) for one in changes])


def _stacked(sources: Sequence[ArraySource]) -> Tensor:
    return torch.stack([read_tensor(source).float() for source in sources])
