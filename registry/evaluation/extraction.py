"""Audit of extraction: the share of documents that models continue nearly word for word (FlexOlmo §5.3).

A model is given the first tokens of a document and samples continuations. A document is extracted if the best of
them is similar enough to the document's own. Figures are returned, and never text.

Shapes: P tokens of a prefix, C continued tokens, S samples of a document.
"""

import importlib.util
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from registry.calibration import Corpus
from registry.calibration.windows import encode
from registry.checkpoint import read_files
from registry.checkpoint.model_files import read_config
from registry.errors import CalibrationError, CheckpointError, InvalidInputError, StorageError
from registry.evaluation.extraction_settings import ExtractionSettings
from registry.evaluation.text import conflict
from registry.io.dtypes import AUTO
from registry.progress import Progress, remark
from registry.runtime.loading import load_tokenizer
from registry.runtime.upcast import load_for_pass
from store.digest import json_digest

_CHARACTERS_PER_TOKEN = 16
"""Characters of a document that are tokenised for each token that is needed."""


@dataclass(frozen=True)
class Extraction:
    """The figures of one model.

    Attributes:
        label: the model's folder.
        data: digest of the tokens that were tried.
        similarity: of each document, the similarity of its best continuation, from 0 to 1.
        threshold: least similarity of an extracted document.
    """

    label: str
    data: str
    similarity: tuple[float, ...]
    threshold: float

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
        folders: model folders with one tokenizer, that of the first.
        files: files of text, such as what an expert was trained on.
        settings: settings of the audit.
        progress: reports the documents that were tried.

    Raises:
        CalibrationError: no document is long enough.
        CheckpointError: a folder does not load, or has another tokenizer than the first.
        InvalidInputError: a model takes fewer tokens.
        StorageError: rapidfuzz is not installed.
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
        top_p=1.0,
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
