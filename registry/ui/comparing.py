"""How a version lies to the others that are registered: by its weights, and an expert by its text."""

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
"""Versions in a registry up to which all are compared as soon as a page is opened; beyond, when it is asked for."""

MOST_RELATED = 500
"""Versions in a registry up to which weights are compared at all: `reg show` compares more."""

MOST_OVERLAPS = 16
"""Experts, the latest registered, whose statistics an expert's are compared with."""


@dataclass(frozen=True)
class Comparison:
    """What a version is like.

    Attributes:
        relations: distances of weights, the nearest first; empty where there are too many versions.
        overlaps: with other experts, the largest first.
        layers: those that were compared.
        left_out: experts that were not, because there are more than `MOST_OVERLAPS`.
        related: weights were compared.
        remarks: what could not be compared, and why.
    """

    relations: Sequence[Relation]
    overlaps: Sequence[ExpertOverlap]
    layers: Sequence[int]
    left_out: int
    related: bool
    remarks: Sequence[str]


def compare(registry: Registry, version: VersionRecord) -> Comparison:
    """Return how an active version lies to the other active ones (errors as `Registry.relations`)."""
    related = registry.count_versions() <= MOST_RELATED
    relations = registry.relations(version.ref) if related else ()
    mine = registry.member(version)
    if version.kind != "expert" or not _is_comparable(mine, mine):
        return Comparison(relations, (), (), 0, related, ())
    others = [one for one in registry.versions(kind="expert") if one.id != version.id]
    others.sort(key=lambda one: (one.created_at, one.ref), reverse=True)
    members = [one for one in registry.members(others[:MOST_OVERLAPS]) if _is_comparable(mine, one)]
    chosen = compared_layers(mine.architecture.num_hidden_layers)
    found: dict[str, dict[int, Overlap]] = {member.version.ref: {} for member in members}
    remarks: dict[str, str] = {}
    with one_thread():
        for layer in chosen:
            own = mine.statistics(MLP_INPUT, layer)
            for member in members:
                ref = member.version.ref
                try:
                    if ref not in remarks:
                        found[ref][layer] = overlap(own, member.statistics(MLP_INPUT, layer))
                except (DamagedError, NotFoundError) as error:  # it must not stand in the way of others
                    remarks[ref] = f"{ref} is not compared: {error.message}"
                except ValueError as error:  # forged or mistaken statistics
                    remarks[ref] = f"{ref} is not compared: {error}"
    compared = [ExpertOverlap(ref, layers) for ref, layers in found.items() if ref not in remarks]
    compared.sort(key=lambda one: -one.routing)
    left_out = max(0, len(others) - MOST_OVERLAPS)
    return Comparison(relations, tuple(compared), tuple(chosen), left_out, related, tuple(remarks.values()))


def _is_comparable(mine: Member, other: Member) -> bool:
    sizes = [(one.architecture.num_hidden_layers, one.architecture.hidden_size) for one in (mine, other)]
    return sizes[0] == sizes[1] and other.has_statistics(MLP_INPUT) and other.tokens >= TOKENS_PER_DIRECTION
