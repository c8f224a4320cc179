"""Output of versions, registrations, relations and overlaps; warnings of opted-out members."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.next_steps import after_registration
from cli.output import done, is_quiet, next_step, note, printed_json
from cli.session import Session
from registry.errors import RegError
from registry.families.sites import TOKEN_COUNTS
from registry.io.display import short
from registry.io.model_folder import MARKER

if TYPE_CHECKING:
    from registry import Registry
    from registry.registration.expert_overlap import ExpertOverlap
    from registry.registration.lineage import Relation
    from registry.registration.register import Registration
    from store.catalog import CompositionRecord, VersionRecord

_DIGEST = re.compile(r"[0-9a-f]{6,64}")
_SHOWN = 4  # maximum number of versions in a line


def version_document(version: "VersionRecord") -> dict[str, Any]:
    """Return the JSON document of a version."""
    document = {key: value for key, value in vars(version).items() if key != "id"}
    return {"ref": version.ref, **document}


def shown_parameters(version: "VersionRecord") -> str:
    """Return the number of a version's weights, which a purge deletes."""
    return "purged" if version.state == "purged" else f"{version.parameters:,}"


def members_and_base(composition: "CompositionRecord") -> tuple[str, str]:
    """Return the experts, or the number of copies, and the base model of the latest folder; a public expert is both."""
    document = composition.document
    if "from_base" in document:
        return f"{document['from_base']} copies", ",".join(composition.current)
    experts, base = {member["name"] for member in document["members"]}, (document["base"] or {"name": None})["name"]
    names = {ref: ref.partition("@")[0] for ref in composition.current}
    return (
        ",".join(ref for ref, name in names.items() if name in experts),
        ",".join(ref for ref, name in names.items() if name == base),
    )


def print_registration(registration: "Registration", *, carried: bool = False) -> None:
    """Print the result of add-expert or add-base; `carried`: the statistics came with the checkpoint."""
    version = registration.version
    if printed_json(
        version_document(version)
        | {
            "added": registration.added,
            "self_sampled": registration.self_sampled,
            "relations": relation_documents(registration.relations),
            "overlaps": overlap_documents(registration.overlaps),
        }
    ):
        return
    if not registration.added:
        lines = [f"{version.ref} already has this content; nothing was stored"]
        if registration.newest != version.ref:
            lines.append(f"  {version.name} still refers to {registration.newest}: use {version.ref} for this one")
        done(version.ref, *lines)
        next_step(["show", version.ref])
        return
    lines = [f"registered {version.ref}  {short(version.digest)}"]
    lines += [f"  {line}" for line in relation_lines(registration.relations)]
    lines += [f"  {line}" for line in overlap_lines(registration.overlaps)]
    if registration.self_sampled:
        of_expert = "no data was given, so the expert generated its own calibration text"
        lines.append("  the model wrote the text itself" if version.kind == "base" else f"  {of_expert}")
    source = ", taken from the checkpoint's statistics.safetensors" if carried else ""
    for statistics in version.statistics[:1]:
        kind = "counts of" if statistics.site == TOKEN_COUNTS else "statistics on"
        lines.append(f"  {kind} {statistics.tokens:,} tokens: {statistics.calibration_label}{source}")
    for statistics in version.statistics:
        if statistics.saturated:
            lines.append(f"  {statistics.saturated:,} activations of {statistics.site} were clipped at their bound")
    done(version.ref, *lines)
    is_base = version.kind == "base"
    following = after_registration(version, registration.relations, registration.overlaps, registration.beside)
    next_step(["add-expert", "NAME", "CKPT"] if is_base else following)


def relation_documents(relations: "Sequence[Relation]") -> list[dict[str, Any]]:
    """Return the JSON document of distances to registered versions."""
    return [
        {"ref": r.ref, "kind": r.kind, "verdict": r.verdict, "distance": r.distance, "tensors": dict(r.distances)}
        for r in relations
    ]


def relation_lines(relations: "Sequence[Relation]") -> list[str]:
    """Return distances to registered versions, one line for each verdict: `same base as base@1 (distance 0.054)`."""
    lines = []
    for verdict, word in (("same weights", "as"), ("same base", "as"), ("unrelated", "to")):
        found = [r for r in relations if r.verdict == verdict]
        refs = [f"{r.ref} ({'' if at else 'distance '}{r.distance:.3f})" for at, r in enumerate(found)]
        more = f" and {len(refs) - _SHOWN} more" if len(refs) > _SHOWN else ""
        if refs:
            lines.append(f"{verdict} {word} {', '.join(refs[:_SHOWN])}{more}")
    return lines


def overlap_documents(overlaps: "Sequence[ExpertOverlap]") -> list[dict[str, Any]]:
    """Return the JSON document of overlaps with registered experts."""
    return [
        {"ref": o.ref, "routing": o.routing, "layers": [{"layer": n} | vars(layer) for n, layer in o.layers.items()]}
        for o in overlaps
    ]


def overlap_lines(overlaps: "Sequence[ExpertOverlap]") -> list[str]:
    """Return a line for each registered expert that routing can hardly separate from this one."""
    return [
        f"{o.routing:.0%} overlap of activations with {o.ref}: a linear router can hardly separate their tokens, so "
        "compose with one of them"
        for o in overlaps
        if o.is_indistinct
    ]


def warn_of_opted_out(registry: "Registry", compositions: Iterable[Path | str]) -> None:
    """Print a line on stderr for each folder or digest with members that were opted out since, as far as known."""
    for composition in () if is_quiet() else compositions:
        if not (_is_composed(Path(composition)) or _DIGEST.fullmatch(str(composition))):
            continue  # before anything heavy is imported: the command refuses a wrong name at once
        try:
            versions = registry.opted_out(composition)
        except RegError:
            continue
        if versions:
            members = " and ".join(f"{version.ref}, opted out {str(version.withdrawn_at)[:10]}" for version in versions)
            note(f"warning: {composition} contains {members}: compose the others without it, and delete the folder")


def warn_of_folder(session: Session, folder: Path) -> None:
    """Print the same for a command that needs no registry, if there is one that knows the folder."""
    if is_quiet() or not _is_composed(folder):
        return
    try:
        with session.registry() as registry:
            warn_of_opted_out(registry, [folder])
    except RegError:  # no registry, or none that can be opened
        return


def _is_composed(path: Path) -> bool:
    try:
        return (path / MARKER).is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False
