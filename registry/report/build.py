"""Collection of a report's figures from a composition, the catalog, statistics and evaluations."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from registry.composition.integrity import ComposedFolder
from registry.composition.manifest import CompositionManifest, VersionRef
from registry.composition.preview import Preview
from registry.design import expert_colours
from registry.errors import CheckpointError
from registry.evaluation import Row, TestSettings
from registry.evaluation.service import evaluate_registered
from registry.evaluation.table import Wanted
from registry.names.resolve import composition_of
from registry.registration.expert_overlap import INDISTINCT
from registry.report.data import Audit, Evaluated, MemberFigures, ReportData, RoutingData
from registry.report.gathering import Gathering, scores_of
from registry.report.verdict import advice, verdict
from registry.workspace import PathLike, Workspace
from store.catalog import EvaluationRecord, VersionRecord


def build_report(
    workspace: Workspace,
    composition: PathLike,
    data: Mapping[str, Sequence[PathLike]] | None = None,
    settings: TestSettings | None = None,
) -> ReportData:
    """Return the figures of a composed folder, or of a composition in the catalog (arguments as in `Registry.report`).

    Raises:
        CheckpointError: the folder was not composed by this program, or test text is given without a folder.
        NotFoundError: no composition has a digest with this beginning.
        RegError: the test text cannot be scored (errors as in `Registry.evaluate`).
    """
    path = Path(composition)
    recorded = None if path.is_dir() else composition_of(workspace.catalog, str(composition))
    folder = path.absolute() if recorded is None else None
    if recorded is None:
        composed = ComposedFolder.read(path)
        document, manifest = composed.content, composed.manifest
    else:
        document = {**recorded.document, "digest": recorded.digest}
        manifest = CompositionManifest.from_document(recorded.document, f"composition {recorded.digest[:12]}")
    digest, names = str(document["digest"]), [member.name for member in manifest.members]
    records = {record.digest: record for record in workspace.catalog.compositions()}
    gathering = Gathering(workspace)
    versions = gathering.versions(manifest)
    evaluated: Evaluated | None
    if data:
        if folder is None:
            raise CheckpointError(
                "there is no folder to evaluate", "name the composed folder: reg report moe/ --data …"
            )
        rows = evaluate_registered(workspace, [folder], data, settings, Wanted(baselines=True, oracle=True))
        scores, evaluated = scores_of(rows, folder.name), _evaluated(rows, data)
    else:
        rows, scores, evaluated = gathering.stored(digest, names)
    plan, preview = gathering.predicted(manifest, versions)
    measured = next((row for row in rows if row.routing), None)
    routing = _measured(measured) if measured else _predicted(preview, names)
    if measured is None:
        gathering.notes += _unmeasured(manifest, evaluated, preview)
    if evaluated is not None and manifest.recipe.output.is_combined and not any(row.kind == "oracle" for row in scores):
        gathering.notes.append("perfect routing was not scored: evaluate with --oracle")
    drowned = {} if preview is None else dict(zip(names, (each.drowned for each in preview.members), strict=True))
    record = records.get(digest)
    folders = [str(composition)] if folder else [at for at in (record.folders if record else ()) if Path(at).is_dir()]
    mask_overlap = gathering.masks(manifest, versions)
    first = rows[-1] if rows else None
    figures = ReportData(
        name=folder.name if folder else Path(folders[-1]).name if folders else ", ".join(names),
        digest=digest,
        host=manifest.host,
        made=record.created_at if record else None,
        recipe=_recipe(document["recipe"]),
        members=tuple(_member(gathering, each, versions.get(each.name), drowned) for each in manifest.members),
        parameters=first.parameters if first else plan.parameters if plan else None,
        active_parameters=first.active_parameters if first else plan.active_parameters if plan else None,
        top_k=manifest.recipe.top_k_of(len(names)),
        routing=routing,
        overlap=() if preview is None else tuple((_name(a), _name(b), v) for (a, b), v in preview.overlap.items()),
        scores=scores,
        evaluated=evaluated,
        active_experts=gathering.active_experts(digest),
        trainings=gathering.trainings(versions) if manifest.from_base is None else (),  # a base model's is not its own
        audits=tuple(map(_audit, workspace.catalog.audits(digest))),
        lineage=gathering.lineage(digest, manifest, versions, list(records.values()), folder.name if folder else ""),
        training=gathering.training(document),
        from_base=manifest.from_base,
        mask_overlap=mask_overlap,
        mask_joins=gathering.mask_joins(names, mask_overlap),
        notes=tuple(gathering.notes),
        to=manifest.recipe.to,
        folder=folders[-1] if folders else None,
        colours=_colours(workspace, names, gathering.opted_out),
        indistinct=INDISTINCT if preview is None else preview.indistinct_from,
    )
    return replace(figures, verdict=verdict(figures), warnings=advice(figures))


def _colours(workspace: Workspace, names: Sequence[str], opted_out: Iterable[str]) -> dict[str, int]:
    """Return the colours of a composition's experts, as on all pages: base models and opted-out ones are grey."""
    known = workspace.catalog.names(kind="expert")
    return expert_colours(names, known, grey={*opted_out, *set(workspace.catalog.names(kind="base")).difference(known)})


def _unmeasured(manifest: CompositionManifest, evaluated: Evaluated | None, preview: Preview | None) -> tuple[str, ...]:
    """Return why routing was not measured; nothing of a model that routes nothing."""
    stored = "no evaluation is stored" if evaluated is None else "the stored evaluation has none: evaluate again"
    if manifest.recipe.output.is_combined:
        reason = f"routing is predicted from statistics: {stored}"
        return () if preview is None else (reason, preview.means, *(preview.notes if preview.by_tokens else ()))
    return (f"the weights of {manifest.recipe.output.words} are measured on text, never predicted: {stored}",)


def _member(
    gathering: Gathering, member: VersionRef, version: VersionRecord | None, drowned: Mapping[str, str | None]
) -> MemberFigures:
    name, digest = member.name, member.digest
    if version is None:
        return MemberFigures(name, None, digest, None, None, opted_out=gathering.opted_out.get(name))
    tokens = max((record.tokens for record in version.statistics), default=0)
    license_id = (version.content or {}).get("license")
    return MemberFigures(name, version.ref, digest, tokens, license_id, drowned.get(name))


def _audit(record: EvaluationRecord) -> Audit:
    data, found, settings = (record.document[key] for key in ("data", "extraction", "settings"))
    figures = {key: found[key] for key in ("extracted", "rate", "similarity", "most")}
    sizes = {key: settings[key] for key in ("prefix", "continued")}
    return Audit(text=data["label"], documents=data["documents"], **figures, **sizes, at=record.evaluated_at)


def _evaluated(rows: Sequence[Row], data: Mapping[str, Sequence[PathLike]]) -> Evaluated:
    labels = {domain: ", ".join(Path(file).name for file in files) for domain, files in data.items()}
    return Evaluated(None, rows[0].tokens, labels)


def _measured(row: Row) -> RoutingData:
    layers = max((len(shares) for experts in row.routing.values() for shares in experts.values()), default=0)
    return RoutingData(True, tuple(range(layers)), row.routing, row.load, row.weights)


def _predicted(preview: Preview | None, names: Sequence[str]) -> RoutingData | None:
    if preview is None:
        return None
    shares = {
        domain: {expert: [layer[row][column] for layer in preview.confusion] for column, expert in enumerate(names)}
        for row, domain in enumerate(names)
    }
    count = len(names)
    load = {
        expert: [sum(layer[row][column] for row in range(count)) / count for layer in preview.confusion]
        for column, expert in enumerate(names)
    }
    return RoutingData(False, preview.layers, shares, load)


def _recipe(document: object) -> dict[str, str]:
    assert isinstance(document, dict)
    return {str(key): _text(value) for key, value in document.items()}


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _name(ref: str) -> str:
    return ref.partition("@")[0]
