"""Evaluating: perplexity per domain, and the normalised score of the DUME paper."""

import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F

from registry.calibration import Calibration, Corpus, evenly_spaced
from registry.checkpoint import read_files, tokenizer_digest
from registry.composing.dense import write_dense
from registry.composing.folder import composed_of
from registry.composing.member import Member
from registry.errors import InvalidInputError
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


def evaluate(
    folders: Sequence[Path],
    data: Mapping[str, Sequence[Path]],
    registered: Sequence[Member],
    settings: TestSettings,
    *,
    baselines: bool,
    progress: Progress,
) -> list[Row]:
    """Return one row a model (see `Registry.evaluate`).

    Args:
        folders: model folders; the first one's tokenizer makes the windows.
        data: domain → test files.
        registered: active base models, and experts named like a domain; those with another tokenizer take no part.
        settings: how test text is scored.
        baselines: rows also for base models, experts and the experts' average.
        progress: told of windows scored.

    Raises:
        InvalidInputError: there is no folder or no data.
        CalibrationError: a file cannot be read or holds no text.
        CheckpointError: a folder has no tokenizer, does not load, or a key is missing, unexpected or mismatched.
    """
    if not folders or not data:
        raise InvalidInputError("there is nothing to evaluate", "run: reg evaluate moe/ --data code=FILE")
    windows = test_windows(data, folders[0], settings)
    tokenizer = tokenizer_digest(read_files(folders[0]))
    comparable = [member for member in registered if member.content["tokenizer"] == tokenizer]
    experts = _own_experts(comparable, list(data), composed_of(folders[0]))
    rows: dict[str, dict[str, float]] = {}
    with TemporaryDirectory(prefix="reg-") as temporary:

        def measure(name: str, members: Sequence[Member], domains: Iterable[str]) -> dict[str, float]:
            folder = Path(temporary) / name
            write_dense(members, folder, progress)
            figures = perplexities(name, folder, {domain: windows[domain] for domain in domains}, settings, progress)
            shutil.rmtree(folder)
            return figures

        if baselines:
            for member in comparable:
                if member.version.kind == "base":
                    rows[f"base {member.version.ref}"] = measure(member.version.ref, [member], windows)
            for domain, member in experts.items():
                rows[f"expert {domain}"] = measure(member.version.ref, [member], windows)
            members = [experts[name] for name in sorted(experts)]
            if len(members) > 1 and all(member.architecture == members[0].architecture for member in members):
                rows["average"] = measure("average", members, windows)
            own = {domain: rows[f"expert {domain}"][domain] for domain in experts}
        else:
            own = {d: measure(member.version.ref, [member], [d])[d] for d, member in experts.items()}
    names = [folder.name for folder in folders]
    for folder in folders:
        name = folder.name if folder.name and names.count(folder.name) == 1 else str(folder)
        rows[name] = perplexities(name, folder, windows, settings, progress)
    return [Row(name, ppl, {d: 100 * own[d] / ppl[d] for d in own}) for name, ppl in rows.items()]


def _own_experts(members: Sequence[Member], domains: Sequence[str], composed: Mapping[str, str]) -> dict[str, Member]:
    """Return domain → the expert of its name: the version that was composed, else the newest."""
    experts = {}
    for member in members:
        version = member.version
        if version.kind == "expert" and composed.get(version.name, version.digest) == version.digest:
            experts[version.name] = member
    return {domain: experts[domain] for domain in domains if domain in experts}


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
