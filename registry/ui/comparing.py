"""Comparison of a version with the other registered ones: distances of weights, and overlaps of experts' text."""

from collections.abc import Sequence
from dataclasses import dataclass

from registry.errors import DamagedError, NotFoundError
from registry.families.sites import MLP_INPUT
from registry.maths.overlap import TOKENS_PER_DIRECTION, Overlap, overlap
from registry.maths.threads import one_thread
from registry.member import Member
from registry.registration.expert_overlap import ExpertOverlap, compared_layers
from registry.registration.lineage import Relation
from registry.registry import Registry
from store.catalog import VersionRecord

MOST = 64
"""Number of versions up to which a page compares all of them when it opens; beyond that, only on request."""

MOST_RELATED = 500
"""Number of versions up to which pages compare weights; `reg show` compares more."""

MOST_OVERLAPS = 16
"""Maximum number of experts, the latest registered, whose statistics are compared."""


@dataclass(frozen=True)
class Comparison:
    """The comparison of a version with others.

    Attributes:
        relations: distances of weights, nearest first; empty if there are too many versions.
        overlaps: overlaps with other experts, largest first.
        layers: the compared layers.
        left_out: number of experts that were not compared, beyond `MOST_OVERLAPS`.
        related: True if weights were compared.
        remarks: comparisons that failed, with reasons.
    """

    relations: Sequence[Relation]
    overlaps: Sequence[ExpertOverlap]
    layers: Sequence[int]
    left_out: int
    related: bool
    remarks: Sequence[str]


def compare(registry: Registry, version: VersionRecord) -> Comparison:
    """Compare an active version with the other active ones (errors as in `Registry.relations`)."""
    related = registry.count_versions() <= MOST_RELATED
    relations = registry.relations(version.ref) if related else ()
    member_compared = registry.member(version)
    if version.kind != "expert" or not _is_comparable(member_compared, member_compared):
        return Comparison(relations, (), (), 0, related, ())
    others = [other for other in registry.versions(kind="expert") if other.id != version.id]
    others.sort(key=lambda other: (other.created_at, other.ref), reverse=True)
    members = [member for member in registry.members(others[:MOST_OVERLAPS]) if _is_comparable(member_compared, member)]
    chosen = compared_layers(member_compared.architecture.num_hidden_layers)
    overlaps: dict[str, dict[int, Overlap]] = {member.version.ref: {} for member in members}
    remarks: dict[str, str] = {}
    with one_thread():
        for layer in chosen:
            own = member_compared.statistics(MLP_INPUT, layer)
            for member in members:
                ref = member.version.ref
                try:
                    if ref not in remarks:
                        overlaps[ref][layer] = overlap(own, member.statistics(MLP_INPUT, layer))
                except (
                    DamagedError,
                    NotFoundError,
                ) as error:  # one damaged expert must not prevent the other comparisons
                    remarks[ref] = f"{ref} is not compared: {error.message}"
                except ValueError as error:  # forged or inconsistent statistics
                    remarks[ref] = f"{ref} is not compared: {error}"
    compared = [ExpertOverlap(ref, layers) for ref, layers in overlaps.items() if ref not in remarks]
    compared.sort(key=lambda expert: -expert.routing)
    left_out = max(0, len(others) - MOST_OVERLAPS)
    return Comparison(relations, tuple(compared), tuple(chosen), left_out, related, tuple(remarks.values()))


def _is_comparable(member: Member, other: Member) -> bool:
    sizes = [(each.architecture.num_hidden_layers, each.architecture.hidden_size) for each in (member, other)]
    return sizes[0] == sizes[1] and other.has_statistics(MLP_INPUT) and other.tokens >= TOKENS_PER_DIRECTION
