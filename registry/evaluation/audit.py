"""Audits of extraction against a registry: whose text was tried, and the figures stored with each composition."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

from registry.calibration import Corpus, random_places
from registry.checkpoint import Checkpoint
from registry.errors import RegError
from registry.evaluation.extraction import Extraction, audit_extraction
from registry.evaluation.extraction_settings import ExtractionSettings
from registry.evaluation.record import store_figures
from registry.io.model_folder import composed_of
from registry.names.reference import require_list
from registry.progress import remark
from registry.runtime.loading import load_tokenizer
from registry.statistics.collect import SEED
from registry.statistics.settings import DEFAULT_SEQ_LEN
from registry.workspace import Workspace
from store.arrays import digest_of
from store.catalog import VersionRecord
from store.digest import json_digest


def audit_registered(
    workspace: Workspace,
    folders: Sequence[str | PathLike[str]],
    data: Sequence[str | PathLike[str]],
    settings: ExtractionSettings | None = None,
) -> list[Extraction]:
    """Audit models, and store the figures of compositions (arguments and errors as `Registry.audit_extraction`)."""
    paths, files = [Path(folder) for folder in folders], [Path(file) for file in require_list(data, "data")]
    settings = settings or ExtractionSettings()
    found = audit_extraction(paths, files, settings, workspace.progress)
    label = ", ".join(file.name for file in files)
    composed = [set(composed_of(folder).items()) for folder in paths]
    held = [of or _experts_in(workspace, folder) for of, folder in zip(composed, paths, strict=True)]
    whose = list(_calibrated_on(workspace, paths[0], files, {digest for of in held for _, digest in of}))
    for folder, members, experts, one in zip(paths, composed, held, found, strict=True):
        if seen := [version.ref for version in whose if (version.name, version.digest) in experts]:
            what = f"the {'composition' if members else 'expert'} in {folder}"
            remark(
                workspace.progress,
                f"{label} is calibration text of {', '.join(seen)}, so it is no unseen text for {what}",
            )
        asked = {"extraction": one.data, "settings": asdict(settings)}
        document = _document(one, label, whose, settings)
        store_figures(workspace.catalog, folder, json_digest(asked), document, workspace.progress)
    return found


def _document(
    one: Extraction, label: str, whose: Sequence[VersionRecord], settings: ExtractionSettings
) -> dict[str, Any]:
    return {
        "data": {"digest": one.data, "label": label, "documents": len(one.similarity)},
        "experts": {version.name: version.digest for version in whose},  # an opt-out deletes what names its version
        "settings": asdict(settings),
        "extraction": {key: value for key, value in one.document().items() if key not in ("folder", "documents")},
    }


def _experts_in(workspace: Workspace, folder: Path) -> set[tuple[str, str]]:
    """Return name and content digest of the active experts whose weights are those of a folder.

    Tensors are read until they differ from those of all experts: of an exported expert all, of another model few.
    """
    try:
        checkpoint = Checkpoint(folder, remote_code=True)
        names, digest = (*checkpoint.mlp, *checkpoint.trunk), cache(lambda name: digest_of(checkpoint.source(name)))
        found = set()
        for version in workspace.versions(kind="expert"):
            links = workspace.catalog.arrays_of(version)
            stored = {link.name: link.digest for link in links if link.role in ("mlp", "trunk")}
            if stored.keys() == set(names) and all(stored[name] == digest(name) for name in names):
                found.add((version.name, version.digest))
        return found
    except RegError:  # of another kind, such as a mixture from elsewhere
        return set()


def _calibrated_on(
    workspace: Workspace, folder: Path, files: Sequence[Path], members: Collection[str]
) -> Iterator[VersionRecord]:
    """Yield the active versions whose statistics are of `files`, together or one of them.

    Compared are the experts in the audited folders, and versions whose files had the same names.

    The text of statistics is known by the digest of its windows, so they are drawn again: as many tokens as a version
    has, in windows of the default size. A version that was registered with other windows is not recognised.

    Args:
        workspace: the registry.
        folder: a model, whose tokenizer is that of the versions.
        files: the text of an audit.
        members: content digests.
    """
    tokenizer = load_tokenizer(folder)
    texts = [Corpus(text, tokenizer) for text in {tuple(files), *((file,) for file in files)}]
    labels = {text.label for text in texts}
    drawn: dict[tuple[int, int], set[str]] = {}
    for version in workspace.versions(kind="expert"):
        if version.content is None or not version.statistics:
            continue
        if version.digest not in members and version.statistics[0].calibration_label not in labels:
            continue
        limit = int(version.content["architecture"]["max_position_embeddings"])
        size = (version.statistics[0].tokens, min(DEFAULT_SEQ_LEN, limit))
        if size not in drawn:
            drawn[size] = {
                random_places(text, tokenizer, tokens=size[0], seq_len=size[1], seed=SEED).digest for text in texts
            }
        if version.statistics[0].calibration_digest in drawn[size]:
            yield version
