"""How versions are printed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cli.session import done, print_json

if TYPE_CHECKING:
    from registry.registration.expert_overlap import ExpertOverlap
    from registry.registration.lineage import Relation
    from registry.registration.register import Registration
    from store.catalog import CompositionRecord, VersionRecord


_SHOWN = 4
"""Versions that a line names."""


def version_document(version: "VersionRecord") -> dict[str, Any]:
    """Return a version as `--json` shows it."""
    document = {key: value for key, value in vars(version).items() if key != "id"}
    return {"ref": version.ref, **document}


def members_and_base(composition: "CompositionRecord") -> tuple[str, str]:
    """Return a composition's experts, and the base model whose trunk it has, empty where it has none."""
    base = (composition.document["base"] or {"name": None})["name"]
    names = {ref: ref.partition("@")[0] for ref in composition.members}
    return (
        ",".join(ref for ref, name in names.items() if name != base),
        ",".join(ref for ref, name in names.items() if name == base),
    )


def print_registration(registration: "Registration", as_json: bool, *, carried: bool = False) -> None:
    """Print what add-expert or add-base did; `carried` tells that the checkpoint brought its statistics along."""
    version = registration.version
    if as_json:
        print_json(
            version_document(version)
            | {
                "added": registration.added,
                "self_sampled": registration.self_sampled,
                "relations": relation_documents(registration.relations),
                "overlaps": overlap_documents(registration.overlaps),
            }
        )
        return
    if not registration.added:
        lines = [f"{version.ref} holds this content already; nothing was stored"]
        if registration.newest != version.ref:
            lines.append(f"  {version.name} still stands for {registration.newest}: name {version.ref} to use this one")
        done(version.ref, *lines)
        return
    lines = [f"registered {version.ref}  {version.digest}"]
    lines += [f"  {line}" for line in relation_lines(registration.relations)]
    lines += [f"  {line}" for line in overlap_lines(registration.overlaps)]
    if registration.self_sampled:
        lines.append("  no data was given, so the expert wrote its own calibration text")
    source = ", taken from the checkpoint's statistics.safetensors" if carried else ""
    for statistics in version.statistics[:1]:
        lines.append(f"  statistics on {statistics.tokens:,} tokens: {statistics.calibration_label}{source}")
    for statistics in version.statistics:
        if statistics.saturated:
            lines.append(f"  {statistics.saturated:,} activations of {statistics.site} were held at their bound")
    done(version.ref, *lines)


def relation_documents(relations: "Sequence[Relation]") -> list[dict[str, Any]]:
    """Return distances to registered versions as `--json` shows them."""
    return [
        {"ref": r.ref, "kind": r.kind, "verdict": r.verdict, "distance": r.distance, "tensors": dict(r.distances)}
        for r in relations
    ]


def relation_lines(relations: "Sequence[Relation]") -> list[str]:
    """Return distances to registered versions, one line for each verdict: `same base as base@1 (distance 0.054)`."""
    lines = []
    for verdict, word in (("same weights", "as"), ("same base", "as"), ("unrelated", "to")):
        found = [f"{r.ref} ({r.distance:.3f})" for r in relations if r.verdict == verdict]
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        if found:
            lines.append(f"{verdict} {word} {', '.join(found[:_SHOWN])}{more}")
    return lines


def overlap_documents(overlaps: "Sequence[ExpertOverlap]") -> list[dict[str, Any]]:
    """Return overlaps with registered experts as `--json` shows them."""
    return [
        {"ref": o.ref, "routing": o.routing, "layers": [{"layer": n} | vars(layer) for n, layer in o.layers.items()]}
        for o in overlaps
    ]


def overlap_lines(overlaps: "Sequence[ExpertOverlap]") -> list[str]:
    """Return a line for each registered expert that routing will hardly tell from this one."""
    return [
        f"{o.routing:.0%} overlap with {o.ref}: the router will hardly tell their tokens apart"
        for o in overlaps
        if o.is_indistinct
    ]
