"""Test text: the same windows for every model of a table, and the comparison of tokenizers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from registry.calibration import Calibration, Corpus, evenly_spaced
from registry.checkpoint import tokenizer_digest
from registry.checkpoint.tokenizer import tokenizer_conflict
from registry.errors import CalibrationError
from registry.evaluation.results import TestSettings
from registry.progress import Progress, remark
from registry.runtime.loading import load_tokenizer


def test_windows(
    data: Mapping[str, Sequence[Path]], tokenizer_folder: Path, settings: TestSettings
) -> dict[str, Calibration]:
    """Return each domain's windows.

    Raises:
        CalibrationError: a file cannot be read, or holds no text or a single token.
        CheckpointError: the folder has no tokenizer.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    windows = {
        domain: evenly_spaced(Corpus(files, tokenizer), tokenizer, windows=settings.windows, seq_len=settings.seq_len)
        for domain, files in data.items()
    }
    for domain, text in windows.items():
        if predicted(text) == 0:
            raise CalibrationError(
                f"the text of domain {domain} ({text.label}) is a single token: there is nothing to predict",
                f"give more: --data {domain}=FILE",
            )
    return windows


test_windows.__test__ = False  # type: ignore[attr-defined]


def predicted(windows: Calibration) -> int:
    """Return the number of predicted tokens: all that count but the first of each window."""
    return int((windows.lengths - 1).sum())


def conflict(files: Mapping[str, bytes], other: Mapping[str, bytes]) -> str | None:
    """Return the difference between two models' tokenizers, or None if they make the same tokens of the same text."""
    digests = [tokenizer_digest(files), tokenizer_digest(other)]
    if digests[0] == digests[1]:
        return None
    if "tokenizer.json" in files and "tokenizer.json" in other:
        return tokenizer_conflict(files["tokenizer.json"], other["tokenizer.json"])
    short = ["none" if digest is None else digest[:12] for digest in digests]
    return f"digest {short[0]} against {short[1]}, and not both have a tokenizer.json that could be compared"


def shortened(settings: TestSettings, limits: Mapping[str, int], progress: Progress) -> TestSettings:
    """Return `settings` with windows that fit every model; `limits` is model name → longest window."""
    name = min(limits, key=lambda name: limits[name], default=None)
    if name is None or settings.seq_len <= limits[name]:
        return settings
    remark(progress, f"windows have {limits[name]:,} tokens, not {settings.seq_len:,}: {name} takes no more")
    return replace(settings, seq_len=limits[name])
