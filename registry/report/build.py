"""Gathering the figures of a report from a composition, the catalog, statistics and evaluations."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from registry.composition.compose import plan_composition, preview_composition
from registry.composition.integrity import ComposedFolder
from registry.composition.manifest import CompositionManifest
from registry.composition.plan import Plan
from registry.composition.preview import Preview
from registry.composition.recipe import Recipe
from registry.composition.tensor_source import StoredSource
from registry.errors import CheckpointError, RegError
from registry.evaluation import Row, TestSettings
from registry.evaluation.service import evaluate_registered
from registry.evaluation.table import Wanted
from registry.names.resolve import by_digest, composition_of
from registry.registration.expert_overlap import compared_layers
from registry.registration.lineage_index import LineageIndex
from registry.report.data import Curve, Evaluated, MemberFigures, Node, ReportData, RoutingData, ScoreRow
from registry.workspace import PathLike, Workspace
from store.catalog import CompositionRecord, VersionRecord

_BASES = 8
"""Base models that a lineage is looked for among."""

_CHILDREN = 8
"""Trained compositions that a lineage names."""

_DIGITS = 8
"""Of a composition's digest in a lineage: as many as fit side by side on a phone."""


def build_report(
    workspace: Workspace,
    composition: PathLike,
    data: Mapping[str, Sequence[PathLike]] | None = None,
    settings: TestSettings | None = None,
) -> ReportData:
    """Return the figures of a composed folder, or of a composition in the catalog (arguments as `Registry.report`).

    Raises:
        CheckpointError: the folder was not composed by this program, or there is test text and no folder.
        NotFoundError: no composition begins so.
        RegError: the test text cannot be scored, as in `Registry.evaluate`.
    """
    path = Path(composition)
    recorded = None if path.is_dir() else composition_of(workspace.catalog, str(composition))
    folder = path.absolute() if recorded is None else None
    if recorded is None:
        composed = ComposedFolder.read(path)
        document, described = composed.content, composed.manifest
    else:
        document = {**recorded.document, "digest": recorded.digest}
        described = CompositionManifest.from_document(recorded.document, f"composition {recorded.digest[:12]}")
    digest, names = str(document["digest"]), [member.name for member in described.members]
    records = {record.digest: record for record in workspace.catalog.compositions()}
    gathering = _Gathering(workspace)
    versions = gathering.versions(described)
    evaluated: Evaluated | None
    if data:
        if folder is None:
            raise CheckpointError(
                "there is no folder to evaluate", "name the composed folder: reg report moe/ --data …"
            )
        rows = evaluate_registered(workspace, [folder], data, settings, Wanted(baselines=True, oracle=True))
        scores, evaluated = _scores(rows, folder.name), _evaluated(rows, data)
    else:
        rows, scores, evaluated = gathering.stored(digest)
    plan, foretold = gathering.foretold(described, versions)
    measured = next((row for row in rows if row.routing), None)
    routing = _measured(measured) if measured else _foretold(foretold, names)
    if measured is None:
        gathering.notes.append("routing is foretold from statistics: no evaluation with text is stored")
    drowned = {} if foretold is None else dict(zip(names, (m.drowned for m in foretold.members), strict=True))
    record = records.get(digest)
    first = rows[-1] if rows else None
    return ReportData(
        name=folder.name if folder else ", ".join(names),
        digest=digest,
        host=described.host,
        made=record.created_at if record else None,
        recipe=_recipe(document["recipe"]),
        members=tuple(_member(one.name, one.digest, versions.get(one.name), drowned) for one in described.members),
        parameters=first.parameters if first else plan.parameters if plan else None,
        active_parameters=first.active_parameters if first else plan.active_parameters if plan else None,
        top_k=described.recipe.experts_per_token(len(names)) if isinstance(described.recipe, Recipe) else None,
        routing=routing,
        overlap=() if foretold is None else tuple((_name(a), _name(b), v) for (a, b), v in foretold.overlap.items()),
        curves=gathering.curves(plan),
        scores=scores,
        evaluated=evaluated,
        lineage=gathering.lineage(digest, described, versions, list(records.values())),
        notes=tuple(gathering.notes),
    )


class _Gathering:
    """What is asked of the registry; what it cannot give becomes a note."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.notes: list[str] = []

    @contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        try:
            yield
        except RegError as error:
            self.notes.append(f"{what}: {error.message}")

    def versions(self, described: CompositionManifest) -> dict[str, VersionRecord]:
        """Return name → the active version of a member here."""
        found = {}
        for member in described.members:
            with self._noted(f"nothing is known of {member.name}"):
                found[member.name] = by_digest(self._workspace.catalog, member.name, member.digest, "it")
        return found

    def stored(self, digest: str) -> tuple[list[Row], tuple[ScoreRow, ...], Evaluated | None]:
        """Return what is stored of the evaluation with the most domains, the latest of equals."""
        found = self._workspace.catalog.evaluations(digest)
        if not found:
            self.notes.append("there are no scores: no evaluation of it is stored here")
            return [], (), None
        chosen = max(found, key=lambda one: (len(one.document["data"]), one.evaluated_at))
        document = chosen.document
        rows = [_row(document[key]) for key in ("figures", "oracle") if document[key]]
        data = document["data"]
        evaluated = Evaluated(
            chosen.evaluated_at,
            {domain: text["tokens"] for domain, text in data.items()},
            {domain: text["label"] for domain, text in data.items()},
        )
        return rows[:1], _scores(rows, rows[0].name), evaluated

    def foretold(
        self, described: CompositionManifest, versions: Mapping[str, VersionRecord]
    ) -> tuple[Plan | None, Preview | None]:
        """Return the plan without passes of tokens, and what is foretold of it, where all members are here."""
        recipe = described.recipe
        if not isinstance(recipe, Recipe) or recipe.to != "moe":
            return None, None
        if len(versions) < len(described.members):
            return None, None
        plan = foretold = None
        with self._noted("its routing is not foretold"):
            base = described.base and by_digest(
                self._workspace.catalog, described.base.name, described.base.digest, "it"
            )
            refs = [version.ref for version in versions.values()]
            plan = plan_composition(self._workspace, refs, recipe, base=base.ref if base else None)
            foretold = preview_composition(self._workspace, refs, recipe, base=base.ref if base else None)
            if described.parent:
                self.notes.append("what statistics foretell is of the routers before they were trained")
        return plan, foretold

    def curves(self, plan: Plan | None) -> tuple[Curve, ...]:
        """Return the curve of the ridge strength, from the experts' own statistics."""
        if plan is None or plan.recipe.router != "ridge" or len(plan.members) < 2:
            return ()
        routers = StoredSource(replace(plan, recipe=replace(plan.recipe, refine=0, refine_mlp=False))).routers
        layers, found = compared_layers(plan.lead.architecture.num_hidden_layers), []
        with self._noted("there is no curve of lam"), self._workspace.progress("solving", len(layers), "layer") as step:
            for layer in layers:
                curve = routers.lam_curve(layer)
                found.append(Curve(layer, curve.lams, curve.errors, curve.accuracies, routers.lam(layer)))
                step(1)
        return tuple(found)

    def lineage(
        self,
        digest: str,
        described: CompositionManifest,
        versions: Mapping[str, VersionRecord],
        records: Sequence[CompositionRecord],
    ) -> tuple[Node, ...]:
        """Return base models, members, the composition, what it was trained from and what was trained from it."""
        bases = self._workspace.versions(kind="base")[:_BASES]
        nodes, of = list[Node](), dict[str, tuple[str, ...]]()
        for name, version in versions.items():
            with self._noted(f"the base model of {name} is not known"):
                of[name] = self._ancestors(version, bases)
        used = {described.base.digest} if described.base else set()
        used |= {base for found in of.values() for base in found}
        nodes += [Node(base.digest, base.ref, "base", (), _told(base)) for base in bases if base.digest in used]
        for member in described.members:
            here = versions.get(member.name)
            label, told = (here.ref, _told(here)) if here else (member.name, member.digest[:12])
            nodes.append(Node(member.digest, label, "expert", of.get(member.name, ()), told))
        sources = [member.digest for member in described.members] + ([described.base.digest] if described.base else [])
        parent = described.parent
        if parent:
            nodes.append(Node(parent, parent[:_DIGITS], "composition", tuple(sources), "before training"))
            nodes.append(Node(digest, digest[:_DIGITS], "trained", (parent,), "this composition, its routers trained"))
        else:
            nodes.append(Node(digest, digest[:_DIGITS], "composition", tuple(sources), "this composition"))
        children = [record for record in records if record.document.get("parent") == digest]
        nodes += [
            Node(
                child.digest, child.digest[:_DIGITS], "trained", (digest,), f"routers trained, {child.created_at[:10]}"
            )
            for child in children[:_CHILDREN]
        ]
        return tuple(nodes)

    def _ancestors(self, version: VersionRecord, bases: Sequence[VersionRecord]) -> tuple[str, ...]:
        """Return the nearest base model that shares the version's ancestor, if one does."""
        digests = {base.ref: base.digest for base in bases}
        index = LineageIndex(self._workspace)
        related = index.relations(index.weights(version), bases)
        return tuple(digests[relation.ref] for relation in related if relation.verdict != "unrelated")[:1]


def _member(name: str, digest: str, version: VersionRecord | None, drowned: Mapping[str, str | None]) -> MemberFigures:
    if version is None:
        return MemberFigures(name, None, digest, None, None)
    tokens = max((taken.tokens for taken in version.statistics), default=0)
    license_id = (version.content or {}).get("license")
    return MemberFigures(name, version.ref, digest, tokens, license_id, drowned.get(name))


def _row(document: Mapping[str, Any]) -> Row:
    keys = ("name", "perplexity", "score", "tokens", "accuracy", "load", "parameters", "active_parameters")
    return Row(**{key: document[key] for key in keys}, routing=document.get("routing", {}))


def _scores(rows: Sequence[Row], folder: str) -> tuple[ScoreRow, ...]:
    kinds = {"average": "average", f"{folder} oracle": "oracle", folder: "composition"}
    found = []
    for row in rows:
        kind = kinds.get(row.name, "composition")
        for prefix in ("base", "expert"):
            kind = prefix if row.name.startswith(f"{prefix} ") else kind
        found.append(ScoreRow(row.name, kind, row.score, row.perplexity, row.average))
    order = ("composition", "oracle", "average", "base", "expert")
    return tuple(sorted(found, key=lambda row: order.index(row.kind)))


def _evaluated(rows: Sequence[Row], data: Mapping[str, Sequence[PathLike]]) -> Evaluated:
    labels = {domain: ", ".join(Path(file).name for file in files) for domain, files in data.items()}
    return Evaluated(None, rows[0].tokens, labels)


def _measured(row: Row) -> RoutingData:
    layers = max((len(shares) for experts in row.routing.values() for shares in experts.values()), default=0)
    return RoutingData(True, tuple(range(layers)), row.routing, row.load)


def _foretold(preview: Preview | None, names: Sequence[str]) -> RoutingData | None:
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


def _told(version: VersionRecord) -> str:
    return f"{version.digest[:12]}, registered {version.created_at[:10]}"
