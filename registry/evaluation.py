"""Evaluating: perplexity per domain, and the normalised score of the DUME paper."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from registry.calibration import Calibration, Corpus, evenly_spaced
from registry.loading import load_model, load_tokenizer
from registry.progress import Progress


@dataclass(frozen=True)
class TestSettings:
    """How test text is scored.

    Attributes:
        windows: windows of each domain, evenly spaced over its documents in a seeded order.
        seq_len: tokens in a window; every one but the first is predicted.
        batch_size: windows in a batch.
        device: a torch device, or None for the GPU if there is one.
        dtype: what the models compute in.
    """

    __test__ = False  # not a test class, whatever pytest makes of the name

    windows: int = 48
    seq_len: int = 256
    batch_size: int = 16
    device: str | None = None
    dtype: str = "float32"


@dataclass(frozen=True)
class Row:
    """One model's figures.

    Attributes:
        name: what it is called in the table.
        perplexity: domain → perplexity, exp of the mean negative log-likelihood (nats) of a predicted token.
        score: domain → 100 · (perplexity of the domain's own expert) / perplexity, where that expert is registered.
    """

    name: str
    perplexity: dict[str, float]
    score: dict[str, float]

    @property
    def average(self) -> float | None:
        """Mean score over the domains, where all have one: the figure of the DUME paper's tables."""
        complete = self.score and len(self.score) == len(self.perplexity)
        return sum(self.score.values()) / len(self.score) if complete else None


def test_windows(
    data: Mapping[str, Sequence[Path]], tokenizer_folder: Path, settings: TestSettings
) -> dict[str, Calibration]:
    """Return each domain's windows.

    Raises:
        CalibrationError: a file cannot be read or holds no text.
        CheckpointError: the folder has no tokenizer.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    return {
        domain: evenly_spaced(Corpus(files, tokenizer), tokenizer, windows=settings.windows, seq_len=settings.seq_len)
        for domain, files in data.items()
    }


test_windows.__test__ = False  # type: ignore[attr-defined]


def perplexities(
    name: str, folder: Path, windows: Mapping[str, Calibration], settings: TestSettings, progress: Progress
) -> dict[str, float]:
    """Return the perplexity of the model in `folder` on each domain.

    Raises:
        CheckpointError: the folder does not load, or a key is missing, unexpected or mismatched.
    """
    model = load_model(folder, settings.dtype, settings.device)
    total = sum(len(w.ids) for w in windows.values())
    with progress(f"evaluating {name}", total, "window") as advance:
        return {domain: _perplexity(model, w, settings.batch_size, advance) for domain, w in windows.items()}


@torch.no_grad()
def _perplexity(model: Any, windows: Calibration, batch_size: int, advance: Any) -> float:
    loss, count = 0.0, 0
    for ids, keep in zip(windows.ids.split(batch_size), windows.keep.split(batch_size), strict=True):
        tokens = ids.long().to(model.device)
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        targets = tokens[:, 1:].masked_fill(~keep[:, 1:].to(model.device), -100)
        loss += F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum").item()
        count += int(keep[:, 1:].sum())
        advance(len(ids))
    return math.exp(loss / count) if count else math.nan
