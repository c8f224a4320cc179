"""Registration: a checkpoint's weights, files and statistics become content-addressed arrays and one immutable version.

The order of writing leaves at most unreferenced arrays after a crash: everything is checked, statistics are collected,
arrays are written and read back, and one transaction of the catalog adds the version.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import torch

from registry.calibration.calibration import self_sampled_label
from registry.checkpoint import HashedCheckpoint, hash_checkpoint
from registry.checkpoint.adapted import AdaptedCheckpoint
from registry.checkpoint.annotations import Annotations
from registry.checkpoint.version_files import adapters_beside, base_of_adapter
from registry.errors import ConflictError, SignatureError
from registry.families.sites import CONTENT_COUNTS, COUNTS, MLP_INPUT, PAIR_COUNTS, TOKEN_COUNTS
from registry.io.torch_blocks import to_block
from registry.progress import Progress, remark
from registry.registration.candidate import Candidate, RegistrationRequest, open_candidate
from registry.registration.expert_overlap import ExpertOverlap, overlaps, pack, summarise
from registry.registration.lineage import Relation, equal_mlps, pack_weights
from registry.registration.summary_store import keep_summary
from registry.registration.without_table import NOTE, check_without_table
from registry.statistics.collect import (
    SAMPLES,
    carried_statistics,
    carries_statistics,
    collect,
    evidence_of,
    own_text,
    report_few_tokens,
    text_calibration,
)
from registry.statistics.file import Collected, lazy_layers
from registry.statistics.forward_pass import computed_by, window_size
from registry.workspace import Workspace, content_digest
from store.arrays import ArraySource, ArrayStore, digest_of
from store.catalog import ArrayLink, Catalog, NewVersion, StatisticsRecord, VersionRecord
from store.catalog.records import Kind, Role
from store.ownership import claim

CONTENT_FORMAT = 1


@dataclass(frozen=True)
class Registration:
    """Result of a registration.

    Attributes:
        overlaps: overlap of its statistics with those of the other experts, the largest first.
    """

    version: VersionRecord
    added: bool  # False if a version with the same content was registered already
    self_sampled: bool = False  # the expert sampled its own calibration text, because there was no other
    relations: tuple[Relation, ...] = ()  # its distance to every registered version of its shape, the nearest first
    overlaps: tuple[ExpertOverlap, ...] = ()
    newest: str = ""  # the version that the bare name resolves to
    beside: tuple[str, ...] = ()  # the other adapters of its base model, which are not compared


def register_checkpoint(workspace: Workspace, request: RegistrationRequest) -> Registration:
    """Open and register a checkpoint (errors as `Registry.add_expert`)."""
    with open_candidate(workspace, request) as candidate:
        return register_candidate(workspace, candidate)


def register_candidate(workspace: Workspace, candidate: Candidate) -> Registration:
    """Register a candidate as the next version of an expert or base model (errors as `Registry.add_expert`)."""
    request, manifest = candidate.request, candidate.manifest
    is_expert = request.kind == "expert"
    check_without_table(candidate.checkpoint, candidate.settings, is_expert=is_expert, progress=workspace.progress)
    hashed = hash_checkpoint(candidate.checkpoint, workspace.progress)
    _check_alias(workspace.catalog, candidate, lambda one: (one.content or {}).get("weights") == hashed.weights)
    registration = (_base if request.kind == "base" else _expert)(workspace, candidate, hashed)
    version = registration.version
    if manifest is not None and manifest.digest != version.digest:
        remark(
            workspace.progress,
            f"{request.checkpoint} announces {manifest.digest[:12]}, and is {version.digest[:12]} here: license, "
            "statistics or files differ",
        )
    if registration.added:
        workspace.tell(f"add-{request.kind}", version.ref)
    return _with_relations(workspace, candidate, registration)


def content_of(
    hashed: HashedCheckpoint,
    kind: Kind,
    license_id: str | None,
    *,
    kept: bool = False,
    computed: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content document of a version; with its arrays it determines the content digest.

    Its calibration tokens are `kept` among the arrays; `computed` is that of its statistics.
    """
    checkpoint = hashed.checkpoint
    return (
        {
            "format": CONTENT_FORMAT,
            "kind": kind,
            "family": checkpoint.family.model_type,
            "architecture": checkpoint.architecture.to_dict(),
            "dtype": checkpoint.dtype,
            "special_tokens": checkpoint.special_tokens,
            "weights": hashed.weights,
            "tokenizer": hashed.tokenizer,
            "tokens": hashed.tokens,
            "license": license_id,
            "calibration_kept": kept,
            "computed": computed,
        }
        | dict(checkpoint.origin)
        | hashed.joint
    )


def write_arrays(
    store: ArrayStore,
    hashed: HashedCheckpoint,
    collected: Collected | None,
    progress: Progress,
    check: Callable[[Sequence[ArrayLink]], None] = lambda _: None,
) -> tuple[ArrayLink, ...]:
    """Write the arrays of a version that the store lacks, and return links to all; a failure leaves nothing behind.

    `check` may refuse the links, which is a failure too.
    Where several may write at once, it leaves garbage, which `reg gc` deletes. Several arrays are compressed, written,
    flushed and read back at once. The caller holds the registry's lock (StorageError: the disk refused; DamagedError:
    the bytes read back differ from those written, or the checkpoint changed meanwhile).
    """
    items = list(_arrays(hashed, collected))
    lock, begun, fresh = Lock(), set[str](), list[str]()

    def store_array(role: Role, name: str, source: ArraySource, digest: str | None) -> ArrayLink:
        if digest is None:
            source = source.in_memory()  # packed once
            digest = digest_of(source)
        with lock:  # two arrays of a version may be equal
            is_first = digest not in begun
            begun.add(digest)
            if is_first and not store.has(digest):
                fresh.append(digest)
        if is_first:
            store.put(source, compress=role == "statistics", digest=digest)
        return ArrayLink(role, name, digest, source.dtype, source.shape, source.nbytes)

    with ThreadPoolExecutor(store.writers, thread_name_prefix="storing") as pool:
        try:
            with progress("storing", sum(source.nbytes for _, _, source, _ in items), "B") as advance:
                futures = [pool.submit(store_array, *item) for item in items]
                for done in as_completed(futures):
                    advance(done.result().nbytes)
                linked = [replace(link, role=role) for (role, _), link in hashed.checkpoint.stored.items()]
                links = (*(future.result() for future in futures), *linked)
            check(links)
            return links
        except BaseException:
            pool.shutdown(cancel_futures=True)
            if not store.concurrent_writers:  # else another process may be about to use what this one has written
                for digest in fresh:  # unreferenced: the caller holds the registry's lock
                    store.delete(digest)
            raise


def _base(workspace: Workspace, candidate: Candidate, hashed: HashedCheckpoint) -> Registration:
    """Register a base model, with counts of text that it writes if these are asked for."""
    if not candidate.request.own_text:
        return _register(workspace, candidate, hashed)
    settings = replace(candidate.settings, tokens=candidate.request.own_text, sites=COUNTS)
    collected = own_text(hashed, settings, workspace.progress)
    return replace(_register(workspace, candidate, hashed, collected), self_sampled=True)


def _expert(workspace: Workspace, candidate: Candidate, hashed: HashedCheckpoint) -> Registration:
    """Register an expert with statistics from the first available source; a repeat ends before its forward pass."""
    catalog, request = workspace.catalog, candidate.request
    checkpoint, settings = candidate.checkpoint, candidate.settings
    calibration = text_calibration(checkpoint, candidate.request.data, settings, workspace.progress)
    collected = carried_statistics(hashed) if calibration is None else None
    self_sampled = calibration is None and collected is None
    if calibration is not None and carries_statistics(checkpoint):
        remark(workspace.progress, f"{checkpoint.label} carries statistics, in whose place new ones are made of --data")
    if collected is not None and collected.calibration is None and request.keep_calibration:
        remark(
            workspace.progress,
            f"{checkpoint.label} carries statistics without their tokens, and none are kept: give --data FILE",
        )
    kept = request.keep_calibration or self_sampled if collected is None else collected.calibration is not None
    planned = computed_by(checkpoint, settings, self_sampled=self_sampled) | evidence_of(calibration)
    computed = planned if collected is None else collected.computed
    if calibration is not None:
        text = calibration.digest
    elif collected is not None:
        text = collected.calibration_digest
    else:  # sampled later: the label has the settings, which with the weights determine it
        text = self_sampled_label(settings.tokens, window_size(checkpoint, settings))
    existing = _find_same(
        catalog.versions(str(request.name), states=["active"]),
        content_of(hashed, "expert", candidate.annotations.license, kept=kept, computed=computed),
        text,
        in_parts=collected is None,
    )
    links, others = [] if existing is None else catalog.arrays_of(existing), checkpoint.stored
    own = [link.digest for link in links if (link.role, link.name) not in others]  # an adapter mends none of its base's
    if existing is not None and all(map(workspace.arrays.is_intact, own)):
        _check_signed(candidate, existing.digest)
        version = _annotate(catalog, existing, candidate.annotations)
        return Registration(version, added=False, self_sampled=self_sampled)
    if existing is None:
        _check_alias(catalog, candidate, lambda _: False)
    if collected is None:
        if self_sampled:
            remark(workspace.progress, SAMPLES)
        collected = collect(
            hashed,
            calibration,
            settings,
            keep_calibration=request.keep_calibration,
            partial=workspace.home.partial,
            cluster=workspace.cluster,
            progress=workspace.progress,
        )
    report_few_tokens(collected, checkpoint, settings, workspace.progress)
    summaries = summarise(collected.sites.get(MLP_INPUT, ()), workspace.progress)
    expert_overlaps = overlaps(summaries, workspace, but=request.name)
    registration = _register(workspace, candidate, hashed, collected)
    if summaries:
        keep_summary(workspace, registration.version, "tokens", pack(summaries))
    return replace(registration, overlaps=expert_overlaps, self_sampled=self_sampled)


def _register(
    workspace: Workspace, candidate: Candidate, hashed: HashedCheckpoint, collected: Collected | None = None
) -> Registration:
    """Write the arrays, then the version in one transaction of the catalog."""
    catalog, kind = workspace.catalog, candidate.request.kind
    name, annotations = str(candidate.request.name), candidate.annotations
    kept = collected is not None and collected.calibration is not None
    computed = None if collected is None else collected.computed
    content = content_of(hashed, kind, annotations.license, kept=kept, computed=computed)
    catalog.create()
    with catalog.lock(f"registering {name}", shared=workspace.arrays.concurrent_writers):
        claim(catalog, workspace.arrays)
        if isinstance(hashed.checkpoint, AdaptedCheckpoint):
            catalog.check_active([hashed.checkpoint.base.version])  # its arrays are this version's too

        def check(links: Sequence[ArrayLink]) -> None:
            digest = content_digest(content, links)
            _check_signed(candidate, digest)
            _check_alias(catalog, candidate, lambda one: one.digest == digest)

        arrays = write_arrays(workspace.arrays, hashed, collected, workspace.progress, check)
        new = NewVersion(
            name,
            kind,
            content_digest(content, arrays),
            content,
            hashed.checkpoint.parameters,
            arrays,
            () if collected is None else tuple(_statistics_records(collected)),
            annotations.tags,
        )
        version, added = catalog.add_version(new)
    return Registration(_annotate(catalog, version, annotations), added)


def _check_alias(catalog: Catalog, candidate: Candidate, is_same: Callable[[VersionRecord], bool]) -> None:
    """Refuse an alias that is protected (ConflictError), unless a version `is_same`, which may have it already."""
    name = str(candidate.request.name)
    if not any(map(is_same, catalog.versions(name, states=("active",)))):
        catalog.check_alias(name, candidate.annotations.alias)


def _check_signed(candidate: Candidate, digest: str) -> None:
    """Refuse what has another digest than the one that was signed, if any (SignatureError)."""
    if candidate.signer is None or candidate.manifest is None or candidate.manifest.digest == digest:
        return
    raise SignatureError(
        f"{candidate.checkpoint.label} is {digest[:12]} here, and {candidate.signer} signed "
        f"{candidate.manifest.digest[:12]}: license, statistics or files differ",
        "drop --data, --license and other options that make it another version; else do not use it before its signer "
        "has looked at it",
    )


def _with_relations(workspace: Workspace, candidate: Candidate, registration: Registration) -> Registration:
    """Store the samples that the version is compared by, and add relations and newest version to the result."""
    version = registration.version
    if base_of_adapter(version) is None:
        keep_summary(workspace, version, "weights", pack_weights(candidate.samples))
    if registration.added:
        _remark_difference(workspace, version)
        for text in equal_mlps(candidate.relations, candidate.checkpoint.mlp) if version.kind == "expert" else ():
            remark(workspace.progress, text)
    try:
        newest = workspace.resolve(version.name).ref
    except ConflictError:  # it was opted out meanwhile
        newest = version.ref
    beside = adapters_beside(version, workspace.versions("expert"))
    return replace(registration, relations=candidate.relations, newest=newest, beside=beside)


def _remark_difference(workspace: Workspace, version: VersionRecord) -> None:
    """Report why a version with the weights of an earlier one of its name is another."""
    now = version.content or {}
    active = workspace.catalog.versions(version.name, states=("active",))
    same = [one for one in active if (one.content or {}).get("weights") == now["weights"] and one.id != version.id]
    if not same:
        return
    earlier = max(same, key=lambda one: one.number)
    before = earlier.content or {}
    differs = [word for key, word in _PARTS.items() if before.get(key) != now.get(key)]
    if before.get("license") != now.get("license"):
        licenses = [one.get("license") or "none" for one in (before, now)]
        differs.append("license ({} there, {} here)".format(*licenses))
    texts = [{one.calibration_digest for one in each.statistics} for each in (earlier, version)]
    differs += ["text of the statistics"] if texts[0] != texts[1] else []
    if differs:
        remark(workspace.progress, f"it has the weights of {earlier.ref}, but differs in: {', '.join(differs)}")


_PARTS = {
    "tokenizer": "tokenizer",
    "special_tokens": "special tokens",
    "computed": "settings of the statistics",
    "calibration_kept": "kept tokens",
}
"""Key of a version's content → what it is called."""


def _annotate(catalog: Catalog, version: VersionRecord, annotations: Annotations) -> VersionRecord:
    if annotations.alias is not None and annotations.alias not in version.aliases:
        catalog.set_alias(version, annotations.alias)
    if not annotations.tags.items() <= version.tags.items():
        catalog.set_tags(version, annotations.tags)
    return catalog.reread([version])[0]


def _statistics_records(collected: Collected) -> Iterator[StatisticsRecord]:
    digest, label = collected.calibration_digest, collected.calibration_label
    for site, layers in collected.sites.items():
        saturated = sum(item.saturated for item in lazy_layers(layers))
        yield StatisticsRecord(site, layers[0].count, saturated, digest, label)
    if collected.counts_alone:
        yield StatisticsRecord(TOKEN_COUNTS, collected.tokens, 0, digest, label)


def _find_same(
    candidates: list[VersionRecord], content: dict[str, Any], text: str, *, in_parts: bool
) -> VersionRecord | None:
    """Return the active version that already holds `content`, with statistics of a text, its digest or its label.

    A repeated registration then ends before its forward pass. With `in_parts` a version of an earlier release is found
    too whose sums are the same, and kept in parts beside them.
    """
    for version in candidates:
        held = version.content or {}
        if in_parts and "folds" in (held.get("computed") or {}):
            held = held | {"computed": held["computed"] | {"folds": 1}}
        texts = {text for one in version.statistics for text in (one.calibration_digest, one.calibration_label)}
        if held == content and text in texts:
            return version
    return None


def _arrays(
    hashed: HashedCheckpoint, collected: Collected | None
) -> Iterator[tuple[Role, str, ArraySource, str | None]]:
    """Yield (role, name, array, its digest if known) for all arrays of a version."""
    checkpoint = hashed.checkpoint
    for role, names in (("trunk", checkpoint.trunk), ("mlp", checkpoint.mlp)) if not checkpoint.stored else ():
        for name in names:
            yield role, name, checkpoint.source(name), hashed.tensors[name]
    for (role, name), (source, digest) in hashed.own.items():
        yield role, name, source, digest
    for name, data in hashed.files.items():
        yield "file", name, _source(torch.frombuffer(bytearray(data), dtype=torch.uint8), "uint8"), None
    if collected is None:
        return
    for site, layers in collected.sites.items():
        items = lazy_layers(layers)
        exponents, saturated = [item.exponents for item in items], [item.saturated for item in items]
        yield "statistics", f"{site}/exponents", _source(torch.stack(exponents), "int16"), None
        yield "statistics", f"{site}/saturated", _source(torch.tensor(saturated), "int64"), None
        for number, item in enumerate(items):
            yield "statistics", f"{site}/gram/{number}", item.source, None
    for name, source in collected.folds.items():
        yield "statistics", name, source, None
    for name, counts in ((TOKEN_COUNTS, collected.token_counts), (CONTENT_COUNTS, collected.content_counts)):
        if counts is not None:
            yield "statistics", name, _source(counts, "int64"), None
    if collected.pair_counts is not None and len(collected.pair_counts):
        yield "statistics", PAIR_COUNTS, _source(collected.pair_counts, "int32"), None
    if collected.calibration is not None:
        yield "calibration", "ids", _source(collected.calibration.ids, "int32"), None
        yield "calibration", "lengths", _source(collected.calibration.lengths, "int32"), None


def _source(tensor: torch.Tensor, dtype: str) -> ArraySource:
    return ArraySource.of(to_block(tensor), dtype)


@dataclass(frozen=True)
class Check:
    """Report on a checkpoint that can be registered.

    Attributes:
        text: label of the text that its statistics were collected on, its own ones or new; None without statistics.
        overlaps: overlap of its statistics with those of registered experts, the largest first; None without text to
            collect statistics on, and with token counts alone.
    """

    label: str  # the checkpoint
    family: str  # its `model_type`
    hosts: tuple[str, ...]  # the hosts that carry it, by their names in `--host`, the preferred one first
    notes: tuple[str, ...]  # limitations of a composition in the preferred host, and of what a mixture would keep of it
    dtype: str  # the dtype of most weights
    parameters: int
    tokens: int | None  # number of tokens in its tokenizer's vocabulary; None without a tokenizer.json
    relations: tuple[Relation, ...]  # its distance to every registered version of its shape, the nearest first
    text: str | None
    overlaps: tuple[ExpertOverlap, ...] | None


def check_candidate(workspace: Workspace, candidate: Candidate) -> Check:
    """Return the report on a candidate (`Registry.check`).

    (CheckpointError: NaN or infinite weights, or statistics of others; CalibrationError: no text, or NaN or infinity.)
    """
    checkpoint, settings, progress = candidate.checkpoint, candidate.settings, workspace.progress
    check_without_table(checkpoint, settings, is_expert=False, progress=progress)
    hashed = hash_checkpoint(checkpoint, progress)
    calibration = text_calibration(checkpoint, candidate.request.data, settings, progress)
    collected = carried_statistics(hashed) if calibration is None else None
    if calibration is not None:
        collected = collect(hashed, calibration, settings, progress=progress)
    if collected is not None:
        report_few_tokens(collected, checkpoint, settings, progress)
    inputs = None if collected is None else collected.sites.get(MLP_INPUT)
    summaries = None if inputs is None else summarise(inputs, progress)
    hosts = checkpoint.family.hosts(checkpoint.architecture) if checkpoint.family.has_table else {}
    of_host = next((host.notes for host in hosts.values()), (NOTE,))
    return Check(
        label=checkpoint.label,
        family=checkpoint.family.model_type,
        hosts=tuple(hosts),
        notes=(*of_host, *equal_mlps(candidate.relations, candidate.checkpoint.mlp)),
        dtype=checkpoint.dtype,
        parameters=checkpoint.parameters,
        tokens=hashed.tokens,
        relations=candidate.relations,
        text=None if collected is None else collected.calibration_label,
        overlaps=None if summaries is None else overlaps(summaries, workspace),
    )
