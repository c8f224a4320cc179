"""Experts that a composition for a text can be chosen from, and their counts of tokens."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from registry.composition.compatibility import check_compatible
from registry.errors import IncompatibleError, InvalidInputError
from registry.families.sites import CONTENT_COUNTS, TOKEN_COUNTS
from registry.member import Member, load_member
from registry.names.reference import check_distinct
from registry.workspace import Workspace
from store.catalog import VersionRecord

_HINT = "register it with text: reg add-expert {} CKPT --data FILE"


@dataclass(frozen=True)
class Candidates:
    """Experts that can stand in one composition, and what their evidence is.

    Attributes:
        members: in name order.
        counts: of each member, and then of each base model that counted its own text: sparse, int64 of shape (V,).
        special: tokens that begin, end and pad a text, of which counts are 0.
        left_out: a line on each other expert, which says why.
    """

    members: tuple[Member, ...]
    counts: tuple[torch.Tensor, ...]
    special: tuple[int, ...]
    left_out: tuple[str, ...]


def find_candidates(workspace: Workspace, must: Sequence[str], without: Sequence[str]) -> Candidates:
    """Return the newest version of each expert, or that of `must`, that can stand beside the first of `must`, or most.

    Raises:
        InvalidInputError: an expert is in both, or twice in `must`; or there is none to choose from.
        IncompatibleError: one of `must` counted no token, or cannot stand beside the first; or no expert counted one.
    """
    required = [workspace.resolve(ref, kind="expert") for ref in must]
    needed, barred = [version.name for version in required], {workspace.resolve(ref).name for ref in without}
    check_distinct(needed)
    if both := sorted(barred & {*needed}):
        raise InvalidInputError(f"{', '.join(both)} is to be chosen and to be left out", "name each in one option")
    newest = {version.name: version for version in (*workspace.versions("expert"), *required)}  # by number
    counted = workspace.catalog.statistics_named((TOKEN_COUNTS, CONTENT_COUNTS))

    def light(version: VersionRecord) -> Member:
        return Member(version, tuple(counted.get(version.id, ())), workspace.arrays)

    members = [light(newest[name]) for name in sorted({*newest} - barred)]
    if not members:
        raise InvalidInputError("there is no expert to choose from", _HINT.format("NAME"))
    kinds = Counter(map(_kind, members))
    lead = max(members, key=lambda member: (member.name in needed[:1], kinds[_kind(member)]))
    lead = load_member(workspace, lead.version)
    values = lead.content["special_tokens"].values()
    special = {token for value in values for token in (value if isinstance(value, list) else [value])} - {None}
    bases = [light(version) for version in workspace.versions("base") if version.id in counted]
    found, counts, left_out = list[Member](), list[torch.Tensor](), list[str]()
    for member in (*members, *bases):
        try:
            is_alike = member.content["tokenizer"] == lead.content["tokenizer"]  # else their files are compared
            check_compatible([lead, member if is_alike else load_member(workspace, member.version)])
            with workspace.reading(member.version):
                counts.append(_evidence(member, special))
        except IncompatibleError as error:
            if member.name in needed:
                raise
            left_out.append(error.message)
        else:
            found.append(member)
    experts = tuple(member for member in found if member.version.kind == "expert")
    if not experts:
        raise IncompatibleError(f"no expert can be chosen: {left_out[0]}", _HINT.format("NAME"))
    return Candidates(experts, tuple(counts), tuple(special), tuple(left_out))


def _evidence(member: Member, special: set[int]) -> torch.Tensor:
    """Return the counts of a member, sparse (IncompatibleError: it counted no token)."""
    member.require_statistics([TOKEN_COUNTS], "a suggestion", "needs")
    counts = member.evidence_counts.clone()
    counts[[token for token in special if 0 <= token < len(counts)]] = 0
    if int(counts.sum()) < 1 or int(counts.min()) < 0:
        raise IncompatibleError(f"{member.version.ref} counted no token", _HINT.format(member.name))
    return counts.to_sparse()


def _kind(member: Member) -> str:
    """Return a text that most members have in common that can stand in one composition."""
    return f"{member.content['family']} {member.content['tokenizer']} {member.architecture.hidden_size}"
