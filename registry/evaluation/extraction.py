"""Audit of extraction: the share of documents that models continue nearly word for word (FlexOlmo §5.3).

A model is given the first tokens of a document and samples continuations. A document is extracted if the best of
them is similar enough to the document's own. Figures are returned, and never text.

Shapes: P tokens of a prefix, C continued tokens, S samples of a document.
"""

import importlib.util
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from registry.calibration import Corpus, random_places
from registry.calibration.windows import encode
from registry.checkpoint import Checkpoint, hash_checkpoint, read_files
from registry.checkpoint.model_files import read_config
from registry.errors import CalibrationError, CheckpointError, InvalidInputError, RegError, StorageError
from registry.evaluation.benchmark import conflict
from registry.evaluation.record import store_figures
from registry.evaluation.results import ExtractionSettings
from registry.io.dtypes import AUTO
from registry.io.model_folder import composed_of
from registry.names.reference import require_list
from registry.progress import Progress, remark, silent
from registry.runtime.loading import load_tokenizer
from registry.runtime.upcast import load_for_pass
from registry.statistics.collect import SEED
from registry.statistics.settings import DEFAULT_SEQ_LEN
from registry.workspace import PathLike, Workspace
from store.catalog import VersionRecord
from store.digest import json_digest

_CHARACTERS_PER_TOKEN = 16  # characters of a document that are tokenised for each token that is needed


@dataclass(frozen=True)
class Extraction:
    """The figures of one model, called by its folder."""

    label: str
    data: str
    similarity: tuple[float, ...]  # of each document, the similarity of its best continuation, from 0 to 1
    threshold: float  # least similarity of an extracted document

    @property
    def extracted(self) -> int:
        """Number of documents that were extracted."""
        return sum(value >= self.threshold for value in self.similarity)

    @property
    def rate(self) -> float:
        """Share of documents that were extracted."""
        return self.extracted / len(self.similarity)

    @property
    def mean(self) -> float:
        """Mean similarity of the best continuations."""
        return fmean(self.similarity)

    def document(self) -> dict[str, Any]:
        """Return the figures as a document."""
        return {
            "folder": self.label,
            "documents": len(self.similarity),
            "extracted": self.extracted,
            "rate": self.rate,
            "similarity": self.mean,
            "most": max(self.similarity),
        }


def audit_extraction(
    folders: Sequence[Path], files: Sequence[Path], settings: ExtractionSettings, progress: Progress
) -> list[Extraction]:
    """Return the figures of each model on the same documents.

    Args:
        folders: model folders with one tokenizer, that of the first (CheckpointError: they have not).
        files: files of text, such as what an expert was trained on (CalibrationError: no document is long enough).

    Raises InvalidInputError if a model takes fewer tokens, StorageError if rapidfuzz is not installed.
    """
    if importlib.util.find_spec("rapidfuzz") is None:
        raise StorageError("the audit needs rapidfuzz", "run: pip install 'expert-registry[audit]'")
    _check(folders, settings)
    documents = _documents(folders[0], files, settings, progress)
    data, found = json_digest(["documents", documents]), []
    for folder in folders:
        model = load_for_pass(folder, AUTO, settings.device, prefer_whole=True, progress=progress)
        with progress(f"auditing {folder.name}", len(documents), "document") as advance:
            similarity = tuple(_similarities(model, documents, settings, advance))
        found.append(Extraction(str(folder), data, similarity, settings.threshold))
        del model
    return found


def _check(folders: Sequence[Path], settings: ExtractionSettings) -> None:
    """Check that all models take the text, and make the same tokens of it, before one is loaded."""
    length, files = settings.prefix + settings.continued, [read_files(folder) for folder in folders]
    for folder, own in zip(folders, files, strict=True):
        limit = read_config(folder).get("max_position_embeddings")
        if isinstance(limit, int) and limit < length:
            raise InvalidInputError(
                f"{folder} takes {limit:,} tokens, and a prefix and its continuation have {length:,}",
                f"give fewer: --continued {max(1, limit - settings.prefix)}",
            )
        if difference := conflict(files[0], own):
            raise CheckpointError(
                f"the tokenizers of {folders[0]} and {folder} differ: {difference}", "audit each in a run of its own"
            )


def _documents(
    folder: Path, files: Sequence[Path], settings: ExtractionSettings, progress: Progress
) -> list[list[int]]:
    """Return the first P + C tokens of documents drawn by reservoir (Vitter 1985, algorithm R), which bounds memory."""
    tokenizer, length, draw = load_tokenizer(folder), settings.prefix + settings.continued, random.Random(settings.seed)
    corpus = Corpus(files, tokenizer)
    drawn: list[list[int]] = []
    long_enough = short = 0
    for document in corpus:
        tokens = encode(document, tokenizer, 0, _CHARACTERS_PER_TOKEN * length)
        if len(tokens) < length:
            short += 1
            continue
        long_enough += 1
        if len(drawn) < settings.documents:
            drawn.append(tokens[:length])
        elif (place := draw.randrange(long_enough)) < settings.documents:
            drawn[place] = tokens[:length]
    if short:
        remark(progress, f"documents left out, because they have fewer than {length:,} tokens: {short:,}")
    if not drawn:
        raise CalibrationError(
            f"{corpus.label}: no document has {length:,} tokens, a prefix and its continuation",
            "give longer documents, or fewer tokens: --continued 64",
        )
    return drawn


@torch.no_grad()
def _similarities(
    model: Any, documents: Sequence[list[int]], settings: ExtractionSettings, advance: Any
) -> Iterator[float]:
    from rapidfuzz.distance import Levenshtein
    from transformers import GenerationConfig

    generation = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=settings.top_k,
        top_p=settings.top_p,
        num_return_sequences=settings.samples,
        max_new_tokens=settings.continued,
        min_new_tokens=settings.continued,
        pad_token_id=0,
    )
    for number, tokens in enumerate(documents):
        prompt = torch.tensor([tokens[: settings.prefix]], device=model.device)
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed + number)
            rows = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=generation)
        wanted = tokens[settings.prefix :]
        yield max(Levenshtein.normalized_similarity(wanted, row[settings.prefix :].tolist()) for row in rows.cpu())
        advance(1)


def audit_registered(
    workspace: Workspace,
    folders: Sequence[PathLike],
    data: Sequence[PathLike],
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
        asked = {"extraction": one.data, "settings": settings.document()}
        document = {
            "data": {"digest": one.data, "label": label, "documents": len(one.similarity)},
            "experts": {version.name: version.digest for version in whose},  # an opt-out deletes what names its version
            "settings": settings.document(),
            "extraction": {key: value for key, value in one.document().items() if key not in ("folder", "documents")},
        }
        store_figures(workspace.catalog, folder, json_digest(asked), document, workspace.progress)
    return found


def _experts_in(workspace: Workspace, folder: Path) -> set[tuple[str, str]]:
    """Return name and digest of the active experts whose weights are a folder's."""
    try:
        weights = hash_checkpoint(Checkpoint(folder, remote_code=True), silent).weights
    except RegError:  # of another kind, such as a mixture from elsewhere
        return set()
    experts = workspace.versions(kind="expert")
    return {(one.name, one.digest) for one in experts if (one.content or {}).get("weights") == weights}


def _calibrated_on(
    workspace: Workspace, folder: Path, files: Sequence[Path], members: Collection[str]
) -> Iterator[VersionRecord]:
    """Yield the active versions whose statistics are of `files`, together or one of them.

    Compared are the experts with the content digests `members`, and versions whose files had the same names. The text
    of statistics is known by the digest of its windows, so they are drawn again with the tokenizer in `folder`: as many
    tokens as a version has, in windows of the default size. A version registered with others is not recognised.
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
