"""The pages of experts and base models: one version, its comparison with others, and what an opt-out would change."""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from registry.checkpoint.joint_training import joint_trainings, parts_in
from registry.destination.address import may_exist
from registry.errors import DamagedError, NotFoundError
from registry.evaluation.stored import shown_score
from registry.families.sites import MLP_INPUT
from registry.maths.overlap import TOKENS_PER_DIRECTION, Overlap, overlap
from registry.maths.threads import one_thread
from registry.member import Member
from registry.names.resolve import ALL_STATES, resolve, versions_of
from registry.opt_out.withdraw import trained_together
from registry.registration.expert_overlap import ExpertOverlap, compared_layers
from registry.registration.lineage import Relation
from registry.registry import Registry
from registry.ui.describing import describe
from registry.ui.site import PART, Site, url
from store.catalog import CompositionRecord, EvaluationRecord, VersionRecord
from store.catalog.records import Role, StatisticsRecord

MOST = 64  # versions up to which a page compares all of them when it opens; beyond that, only on request
MOST_RELATED = 500  # versions up to which pages compare weights; `reg show` compares more
MOST_OVERLAPS = 16  # at most so many experts, the latest registered, whose statistics are compared
USES = 20  # compositions on the page of a version
OTHERS = 2  # experts that are looked at for one to compose with
SHOWN = 8  # compositions, the latest, that a page names of those that an opt-out would touch
MOST_HEIRS = 4  # members that a page names of those that would get an expert's tokens
EVENTS = 20  # events on the page of a version

ROLES: Mapping[Role, str] = {
    "trunk": "trunk",
    "mlp": "MLPs",
    "adapter": "adapter",
    "base": "of the base model, which the adapter changes",
    "statistics": "statistics",
    "calibration": "kept calibration tokens",
    "file": "configuration and tokenizer",
}
"""Role of an array → its label."""


def version(site: Site, request: Request) -> Response:
    """Return one version: its content, statistics, compositions and events."""
    registry = site.registry
    record = _requested(site, request)
    if request.path_params["ref"] != record.ref:
        return RedirectResponse(url("versions", record.ref))
    sizes: dict[str, tuple[int, int]] = {}
    for link in registry.arrays_of(record):
        count, nbytes = sizes.get(link.role, (0, 0))
        sizes[link.role] = count + 1, nbytes + link.nbytes
    texts: dict[str, list[StatisticsRecord]] = {}
    for one in record.statistics:
        texts.setdefault(one.calibration_digest, []).append(one)
    compositions = list(reversed(registry.catalog.compositions([record])))
    uses = [describe(made, (), shown_score(registry.evaluations(made), made)) for made in compositions[:USES]]
    written = [folder for made in compositions for folder in made.folders]
    others = [version.name for version in registry.versions(kind="expert", limit=OTHERS) if version.name != record.name]
    same = registry.catalog.versions(states=("active", "withdrawn"), search=record.digest)
    roles = {**ROLES, **{training.key: training.array_words for training in joint_trainings()}}
    return site.render(
        request,
        "version.html",
        names={ref.partition("@")[0] for made in uses for ref in made.experts},
        version=record,
        architecture=(record.content or {}).get("architecture", {}),
        texts=list(texts.values()),
        kept=any(link.role == "calibration" for link in registry.arrays_of(record)),
        own=_own(record, [(made, registry.evaluations(made)) for made in compositions]),
        part_of=[(joint.called.partition(" ")[2], joint.sentence(part)) for joint, part in parts_in(record.content)],
        together=trained_together([record], registry.versions),
        arrays=[(words, *sizes[role]) for role, words in roles.items() if role in sizes],
        nbytes=sum(nbytes for _, nbytes in sizes.values()),
        versions=list(reversed(versions_of(registry.catalog, record.name))),
        uses=uses,
        total=len(compositions),
        alike=[one.ref for one in same if one.digest == record.digest and one.id != record.id],
        folders=[(folder, may_exist(folder)) for folder in dict.fromkeys(written)][:USES],
        pushes=registry.catalog.pushes({record.ref, *(made.digest for made in compositions)}),
        commands=_commands(record, others),
        events=registry.log(record.ref, limit=EVENTS),
        few=registry.count_versions() <= MOST,
    )


def _commands(version: VersionRecord, others: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return what can be done with a version, apart from opting it out: each action with the words of its command."""
    ref = version.ref
    if version.state == "purged":
        return [("See what happened to it", ("log", version.name))]
    if version.state == "withdrawn":
        return [("Delete its content, with a receipt", ("opt-out", ref, "--purge", "--receipt", "receipt.json"))]
    of_expert = [
        ("Compose it with another one", ("compose", "--experts", f"{ref},{(*others, 'OTHER')[0]}", "--out", "moe/")),
        ("Push it to the Hub", ("push-expert", ref, "ORG/NAME")),
    ]
    return [
        *(of_expert if version.kind == "expert" else []),
        ("Write it as a model folder", ("export", ref, "--out", f"{version.name}/")),
        ("Name it", ("alias", ref, "stable")),
    ]


def comparison(site: Site, request: Request) -> Response:
    """Return the lineage of a version and its comparison with others, as a page or a part of the version's page."""
    record, registry = _requested(site, request), site.registry
    which = request.query_params.get(PART)
    if record.state != "active":
        return site.render(request, "comparison.html", version=record, lineage=None, which=which)
    overlaps, remarks = site.cache.get(("overlaps", record.id), lambda: compare(registry, record))
    relations = _relations(site, record)
    compositions = registry.catalog.compositions([record])
    near = [one for one in relations or () if one.verdict != "unrelated"]
    return site.render(
        request,
        "comparison.html",
        names={one.ref.partition("@")[0] for one in overlaps},
        version=record,
        overlaps=overlaps,
        left_out=max(0, registry.count_versions(kind="expert") - 1 - MOST_OVERLAPS),
        remarks=remarks,
        relations=relations,
        which=which,
        lineage={
            "bases": [one for one in near if one.kind == "base"],
            "experts": [one for one in near if one.kind == "expert"] if record.kind == "base" else [],
            "made": [made for made in compositions if "parent" not in made.document],
            "trained": [made for made in compositions if "parent" in made.document],
        },
    )


def _relations(site: Site, version: VersionRecord) -> Sequence[Relation] | None:
    """Return the distances of weights from an active version, nearest first; None if there are too many versions."""
    if site.registry.count_versions() > MOST_RELATED:
        return None
    return site.cache.get(("relations", version.id), lambda: site.registry.relations(version.ref))


def opting_out(site: Site, request: Request) -> Response:
    """Return what an opt-out of a version would change, looked up and not done, as a page or a part of its page."""
    record, registry = _requested(site, request), site.registry
    if record.state != "active":
        return site.render(request, "opting_out.html", version=record, would=None)
    would = site.cache.get(("opt-out", record.id), lambda: registry.opt_out(record.ref, dry_run=True))
    from_it = None
    if record.kind == "base" and (relations := _relations(site, record)) is not None:
        from_it = [one.ref for one in relations if one.kind == "expert" and one.verdict != "unrelated"]
    shown = would.compositions[: -SHOWN - 1 : -1]
    heirs = {one.composition: one.shares for one in would.heirs}
    return site.render(
        request,
        "opting_out.html",
        names={ref.partition("@")[0] for ref in from_it or ()},
        version=record,
        would=would,
        from_it=from_it,
        shown=shown,
        heirs={
            one.digest: sorted(heirs.get(one.digest, {}).items(), key=lambda heir: -heir[1])[:MOST_HEIRS]
            for one in shown
        },
        folders=list(dict.fromkeys(folder for one in would.compositions for folder in one.folders)),
        others=registry.count_versions(kind="expert") - (record.kind == "expert"),
        untouched=len(registry.compositions()) - len(would.compositions),
    )


def _own(
    version: VersionRecord, evaluated: Sequence[tuple[CompositionRecord, Sequence[EvaluationRecord]]]
) -> list[dict[str, Any]]:
    """Return an expert's own perplexity on each text of its domain that a composition with it was scored on.

    It follows from the composition's score and perplexity. Each text has the composition (`record`) that was best on
    it with its perplexity (`composed`), and `bases`: base model → its perplexity, where that was scored.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for record, evaluations in evaluated:
        for evaluation in evaluations:
            document, domain = evaluation.document, version.name
            score = document["figures"]["score"].get(domain)
            if document["experts"].get(domain) != version.digest or score is None:
                continue
            text, composed = document["data"][domain], document["figures"]["perplexity"][domain]
            bases = {
                row["name"].removeprefix("base "): row["perplexity"][domain]
                for row in document.get("single_models", ())
                if row["name"].startswith("base ") and domain in row["perplexity"]
            }
            one = {
                "record": record,
                "label": text["label"],
                "tokens": text["tokens"],
                "perplexity": score * composed / 100,
                "composed": composed,
                "bases": bases,
                "at": evaluation.evaluated_at,
            }
            earlier = found.setdefault((text["digest"], str(document["settings"])), one)
            best = one if one["composed"] < earlier["composed"] else earlier  # of equal ones the first, the latest
            found[text["digest"], str(document["settings"])] = best | {"bases": earlier["bases"] | bases}
    return sorted(found.values(), key=lambda one: one["at"], reverse=True)


def _requested(site: Site, request: Request) -> VersionRecord:
    return resolve(site.registry.catalog, request.path_params["ref"], states=ALL_STATES)


def compare(registry: Registry, version: VersionRecord) -> tuple[list[ExpertOverlap], list[str]]:
    """Return the overlaps of an active version with the latest experts, largest first, and why others have none."""
    own = registry.member(version)
    if version.kind != "expert" or not _is_comparable(own, own):
        return [], []
    others = [other for other in registry.versions(kind="expert") if other.id != version.id]
    others.sort(key=lambda other: (other.created_at, other.ref), reverse=True)
    latest = registry.members(others[:MOST_OVERLAPS])
    members = {member.version.ref: member for member in latest if _is_comparable(own, member)}
    overlaps: dict[str, dict[int, Overlap]] = {ref: {} for ref in members}
    remarks: list[str] = []
    with one_thread():
        for layer in compared_layers(own.architecture.num_hidden_layers):
            statistics = own.statistics(MLP_INPUT, layer)
            for ref in list(overlaps):
                try:
                    overlaps[ref][layer] = overlap(statistics, members[ref].statistics(MLP_INPUT, layer))
                except (DamagedError, NotFoundError, ValueError) as error:  # a ValueError: forged statistics
                    remarks.append(f"{ref} is not compared: {error}")
                    del overlaps[ref]
    compared = [ExpertOverlap(ref, layers) for ref, layers in overlaps.items()]
    return sorted(compared, key=lambda expert: -expert.routing), remarks


def _is_comparable(member: Member, other: Member) -> bool:
    sizes = [(each.architecture.num_hidden_layers, each.architecture.hidden_size) for each in (member, other)]
    return sizes[0] == sizes[1] and other.has_statistics(MLP_INPUT) and other.tokens >= TOKENS_PER_DIRECTION
