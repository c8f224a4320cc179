"""The figures of a report: from a composition, the catalog, statistics and stored or new evaluations."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from registry.checkpoint.version_files import TrainingRecord, training_of, training_record
from registry.composition.compose import plan_composition, preview_composition
from registry.composition.manifest import COMPOSE_AGAIN, ComposedFolder, CompositionManifest, VersionRef
from registry.composition.plan import Plan, output_of
from registry.composition.preview import Preview
from registry.composition.trained import NAMED, trained_part
from registry.design import expert_colours
from registry.errors import CheckpointError, RegError
from registry.evaluation import Row, TestSettings
from registry.evaluation.service import evaluate_registered
from registry.evaluation.stored import widest
from registry.evaluation.table import Wanted
from registry.io.display import plain
from registry.member import load_member
from registry.names.resolve import by_digest, composition_of
from registry.registration.expert_overlap import INDISTINCT
from registry.registration.lineage import relations_of, samples_of_version
from registry.report.data import (
    POINTS,
    ActiveExperts,
    Audit,
    Evaluated,
    MaskJoin,
    MemberFigures,
    Node,
    ReportData,
    RoutingData,
    ScoreRow,
    Training,
)
from registry.report.graphs import mask_joins
from registry.report.score_words import sample
from registry.report.verdict import advice, verdict
from registry.workspace import PathLike, Workspace
from store.catalog import CompositionRecord, EvaluationRecord, VersionRecord

_BASES = 8  # at most so many base models that members are compared with for the lineage
_CHILDREN = 8  # at most so many trained compositions in a lineage
_DIGITS = 8  # digits of a composition without a folder in a lineage: as many as fit side by side on a phone


def build_report(
    workspace: Workspace,
    composition: PathLike,
    data: Mapping[str, Sequence[PathLike]] | None = None,
    settings: TestSettings | None = None,
) -> ReportData:
    """Return the figures of a composed folder, or of a composition in the catalog (arguments as in `Registry.report`).

    CheckpointError: the folder was not composed by this program, or test text is given without a folder. NotFoundError:
    no composition has a digest with this beginning. Other errors are as in `Registry.evaluate`.
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
    names = [member.name for member in manifest.members]
    records = {record.digest: record for record in workspace.catalog.compositions()}
    gathering = Gathering(workspace, str(document["digest"]), manifest)
    evaluated: Evaluated | None
    if data:
        if folder is None:
            raise CheckpointError(
                "there is no folder to evaluate", "name the composed folder: reg report moe/ --data …"
            )
        rows = evaluate_registered(workspace, [folder], data, settings, Wanted(baselines=True, oracle=True))
        labels = {domain: ", ".join(Path(file).name for file in files) for domain, files in data.items()}
        scores, evaluated = scores_of(rows, folder.name), Evaluated(None, rows[0].tokens, labels)
    else:
        rows, scores, evaluated = gathering.stored()
    plan, preview = gathering.predicted()
    measured = next((row for row in rows if row.routing), None)
    routing = _measured(measured) if measured else _predicted(preview, names)
    if measured is None:
        gathering.notes += _unmeasured(manifest, evaluated, preview)
    no_oracle = all(row.kind != "oracle" for row in scores)
    if evaluated is not None and manifest.recipe.output.is_combined and no_oracle:
        gathering.notes.append("perfect routing was not scored: evaluate with --oracle")
    drowned = {} if preview is None else dict(zip(names, (each.drowned for each in preview.members), strict=True))
    record = records.get(gathering.digest)
    folders = [str(composition)] if folder else [at for at in (record.folders if record else ()) if Path(at).is_dir()]
    mask_overlap, joins = gathering.masks()
    first = rows[-1] if rows else None
    figures = ReportData(
        name=folder.name if folder else Path(folders[-1]).name if folders else ", ".join(names),
        digest=gathering.digest,
        host=manifest.host,
        made=record.created_at if record else None,
        recipe={key: plain(value) for key, value in document["recipe"].items()},
        members=tuple(gathering.member(each, drowned.get(each.name)) for each in manifest.members),
        parameters=first.parameters if first else plan.parameters if plan else None,
        active_parameters=first.active_parameters if first else plan.active_parameters if plan else None,
        top_k=manifest.recipe.output.top_k(manifest.recipe, len(names)),
        routing=routing,
        overlap=()
        if preview is None
        else tuple((a.partition("@")[0], b.partition("@")[0], share) for (a, b), share in preview.overlap.items()),
        scores=scores,
        evaluated=evaluated,
        active_experts=gathering.active_experts(),
        trainings=gathering.trainings(),
        audits=tuple(map(_audit, workspace.catalog.audits(gathering.digest))),
        lineage=gathering.lineage(list(records.values()), folder.name if folder else ""),
        training=gathering.training(document.get("training", {})),
        from_base=manifest.from_base,
        mask_overlap=mask_overlap,
        mask_joins=joins,
        notes=tuple(gathering.notes),
        to=manifest.recipe.to,
        folder=folders[-1] if folders else None,
        colours=_colours(workspace, names, gathering.opted_out),
        indistinct=INDISTINCT if preview is None else preview.indistinct_from,
    )
    return replace(figures, verdict=verdict(figures), warnings=advice(figures))


@dataclass
class Gathering:
    """Queries to the registry for a report on a composition; what is unavailable becomes a note."""

    workspace: Workspace
    digest: str
    manifest: CompositionManifest
    notes: list[str] = field(default_factory=list)
    opted_out: dict[str, str] = field(default_factory=dict)  # name → version of the members that were opted out
    versions: dict[str, VersionRecord] = field(default_factory=dict)  # name → active version of those registered here

    def __post_init__(self) -> None:
        manifest, catalog = self.manifest, self.workspace.catalog
        for member in manifest.members if manifest.from_base is None else manifest.versions:
            same = [version for version in catalog.versions(member.name) if version.digest == member.digest]
            if same and all(version.state != "active" for version in same):
                self.opted_out[member.name] = same[-1].ref
                continue
            with self._noted(f"{member.name} is not available"):
                self.versions[member.name] = by_digest(catalog, member.name, member.digest, "it")
        if manifest.from_base is not None:  # copies of one version
            self.versions = {each.name: version for each in manifest.members for version in self.versions.values()}

    @contextmanager
    def _noted(self, problem: str) -> Iterator[None]:
        try:
            yield
        except RegError as error:
            self.notes.append(f"{problem}: {error.message}")

    def member(self, member: VersionRef, drowned: str | None) -> MemberFigures:
        """Return what is known here of a member."""
        name, digest, version = member.name, member.digest, self.versions.get(member.name)
        if version is None:
            return MemberFigures(name, None, digest, None, None, opted_out=self.opted_out.get(name))
        tokens = max((record.tokens for record in version.statistics), default=0)
        return MemberFigures(name, version.ref, digest, tokens, (version.content or {}).get("license"), drowned)

    def stored(self) -> tuple[list[Row], tuple[ScoreRow, ...], Evaluated | None]:
        """Return the widest stored evaluation."""
        evaluations = self.workspace.catalog.evaluations(self.digest)
        chosen = widest(evaluations, [member.name for member in self.manifest.members])
        if chosen is None:
            self.notes.append("there are no scores: no evaluation of this composition is stored here")
            return [], (), None
        if chosen is not evaluations[0]:
            self.notes.append(
                "the scores are those of the evaluation on the most of its own domains and tokens, "
                f"{_text_of(chosen)}; the latest one has {_text_of(evaluations[0])}"
            )
        document = chosen.document
        rows = [Row.from_document(document[key]) for key in ("figures", "oracle", "plain_average") if document.get(key)]
        rows += [Row.from_document(row) for row in document.get("single_models", ())]
        data = document["data"]
        evaluated = Evaluated(
            chosen.evaluated_at,
            {domain: text["tokens"] for domain, text in data.items()},
            {domain: text["label"] for domain, text in data.items()},
        )
        return rows[:1], scores_of(rows, rows[0].name), evaluated

    def active_experts(self) -> tuple[ActiveExperts, ...]:
        """Return the figures by experts per token of the latest evaluation that has them."""
        documents = (record.document for record in self.workspace.catalog.evaluations(self.digest))
        rows: list[dict[str, Any]] = next(
            (each["active_experts"] for each in documents if "active_experts" in each), []
        )
        keys = ("experts_per_token", "active_parameters", "score", "perplexity", "average")
        return tuple(ActiveExperts(**{key: row[key] for key in keys}) for row in rows)

    def trainings(self) -> tuple[Training, ...]:
        """Return the trainings of the members that say how they were trained; a base model's is not its copies' own."""
        trainings = []
        for name, version in self.versions.items() if self.manifest.from_base is None else ():
            with self._noted(f"the training of {name} is not shown"):
                if (record := training_record(self.workspace, version)) is not None:
                    trainings.append(training_figures(name, record))
        return tuple(trainings)

    def training(self, training: Mapping[str, Any]) -> Training | None:
        """Return the training of the composition; None where it has none, or no losses are stored."""
        if "loss" not in training:
            return None
        with self._noted("the training of this composition is not shown"):
            where = f"composition {self.digest[:12]}"
            curve = {key: training[key] for key in ("held_out", "every", "loss") if key in training}
            record = training_of({"format": 1, "training": training, **curve}, where, COMPOSE_AGAIN)
            return training_figures(NAMED.get(trained_part(training), ("its weights",))[0], record)
        return None

    def predicted(self) -> tuple[Plan | None, Preview | None]:
        """Return the plan and its preview, without forward passes; None if a member is not registered here."""
        manifest, recipe = self.manifest, self.manifest.recipe
        if not recipe.output.is_previewed or len(self.versions) < len(manifest.members):
            return None, None
        plan = preview = None
        with self._noted("its routing is not predicted"):
            manifest.check_makeable()
            found = manifest.base and by_digest(self.workspace.catalog, manifest.base.name, manifest.base.digest, "it")
            base = found.ref if found else None
            refs = [version.ref for version in self.versions.values()] if manifest.from_base is None else []
            plan = plan_composition(self.workspace, refs, recipe, base=base, from_base=manifest.from_base)
            if not refs:
                reason = "copies of one base model have no statistics, so their routing is not predicted"
                self.notes.append(reason if manifest.parent else f"{reason}; before training it is random")
                return plan, None
            preview = preview_composition(self.workspace, refs, recipe, base=base)
            if manifest.parent:
                self.notes.append("predictions from statistics concern the composition before its training")
        return plan, preview

    def masks(self) -> tuple[tuple[tuple[str, str, float], ...], tuple[MaskJoin, ...]]:
        """Return the overlaps of the members' masks, and their joins; none without masks, or if one is unknown here."""
        overlap: tuple[tuple[str, str, float], ...] = ()
        if len(self.versions) == len(self.manifest.members):
            with self._noted("the overlap of masks is not available"):
                members = [load_member(self.workspace, version) for version in self.versions.values()]
                overlap = output_of(self.manifest.recipe).mask_overlaps(members)
            with self._noted("the tree of masks is not available"):
                return overlap, mask_joins([member.name for member in self.manifest.members], overlap)
        return overlap, ()

    def lineage(self, records: Sequence[CompositionRecord], folder: str) -> tuple[Node, ...]:
        """Return base models, members, the composition (in a `folder`), its source and those trained from it.

        Compositions are called as on all pages: by their latest folder.
        """
        manifest, digest, versions = self.manifest, self.digest, self.versions
        bases = self.workspace.versions(kind="base")[:_BASES]
        nodes, ancestors_of = list[Node](), dict[str, tuple[str, ...]]()
        for name, known in ((name, one) for name, one in versions.items() if one.kind == "expert"):
            with self._noted(f"the base model of {name} is not known"):
                ancestors_of[name] = self._ancestors(known, bases)
        used = {manifest.base.digest} if manifest.base else set()
        used |= {version.digest for version in versions.values() if version.kind == "base"}
        used |= {base for ancestors in ancestors_of.values() for base in ancestors}
        nodes += [Node(base.digest, base.ref, "base", (), _caption(base)) for base in bases if base.digest in used]
        for member in manifest.members:
            version = versions.get(member.name)
            if member.digest in used:  # a base model
                continue
            label, caption = (version.ref, _caption(version)) if version else (member.name, member.digest[:12])
            nodes.append(Node(member.digest, label, "expert", ancestors_of.get(member.name, ()), caption))
        sources = tuple(dict.fromkeys(one.digest for one in manifest.versions))
        names = {one.digest: Path(one.folders[-1]).name for one in records if one.folders}
        names |= {digest: folder} if folder else {}

        def add(composition: str, kind: str, of: tuple[str, ...], told: str) -> None:
            label = names.get(composition, composition[:_DIGITS])
            nodes.append(Node(composition, label, kind, of, f"{composition[:12]}, {told}"))

        if manifest.parent:
            add(manifest.parent, "composition", sources, "before training")
            add(digest, "trained", (manifest.parent,), "this composition, after training")
        else:
            add(digest, "composition", sources, "this composition")
        children = [record for record in records if record.document.get("parent") == digest]
        for child in children[:_CHILDREN]:
            add(child.digest, "trained", (digest,), f"trained, {child.created_at[:10]}")
        return tuple(nodes)

    def _ancestors(self, version: VersionRecord, bases: Sequence[VersionRecord]) -> tuple[str, ...]:
        """Return the nearest base model that is related to the version, or an empty tuple."""
        digests = {base.ref: base.digest for base in bases}
        related = relations_of(self.workspace, samples_of_version(self.workspace, version), bases)
        return tuple(digests[relation.ref] for relation in related if relation.verdict != "unrelated")[:1]


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


def _audit(record: EvaluationRecord) -> Audit:
    data, found, settings = (record.document[key] for key in ("data", "extraction", "settings"))
    figures = {key: found[key] for key in ("extracted", "rate", "similarity", "most")}
    sizes = {key: settings[key] for key in ("prefix", "continued")}
    return Audit(text=data["label"], documents=data["documents"], **figures, **sizes, at=record.evaluated_at)


def _measured(row: Row) -> RoutingData:
    layers = max((len(shares) for experts in row.routing.values() for shares in experts.values()), default=0)
    return RoutingData(True, tuple(range(layers)), row.routing, row.load, row.weights)


def _predicted(preview: Preview | None, names: Sequence[str]) -> RoutingData | None:
    if preview is None:
        return None
    of_layers, experts = preview.confusion, list(enumerate(names))
    shares = {
        domain: {expert: [layer[row][column] for layer in of_layers] for column, expert in experts}
        for row, domain in experts
    }
    load = {
        expert: [sum(layer[row][column] for row, _ in experts) / len(names) for layer in of_layers]
        for column, expert in experts
    }
    return RoutingData(False, preview.layers, shares, load)


def _text_of(evaluation: EvaluationRecord) -> str:
    return sample([text["tokens"] for text in evaluation.document["data"].values()])


def scores_of(rows: Sequence[Row], folder: str) -> tuple[ScoreRow, ...]:
    """Return the scores of rows, the composition's first."""
    kinds = {"average": "average", f"{folder} oracle": "oracle", folder: "composition"}
    keys = ("name", "score", "perplexity", "average", "interval", "average_interval", "ahead_of_average")
    scored = []
    for row in rows:
        kind = kinds.get(row.name, "composition")
        for prefix in ("base", "expert"):
            kind = prefix if row.name.startswith(f"{prefix} ") else kind
        scored.append(ScoreRow(kind=kind, **{key: getattr(row, key) for key in keys}))
    order = ("composition", "oracle", "average", "base", "expert")
    return tuple(sorted(scored, key=lambda row: order.index(row.kind)))


def training_figures(name: str, record: TrainingRecord) -> Training:
    """Return a training with at most `POINTS` losses, each the mean of as many."""
    size = -(-len(record.loss) // POINTS)
    starts = range(0, len(record.loss), size)
    at, loss = (tuple(fmean(of[start : start + size]) for start in starts) for of in (record.at, record.loss))
    return Training(name, record.steps, record.tokens, record.before, record.after, at, loss)


def _caption(version: VersionRecord) -> str:
    return f"{version.digest[:12]}, registered {version.created_at[:10]}"
