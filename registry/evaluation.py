"""Evaluating: perplexity per domain, and the normalised score of the DUME paper."""

import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F

from registry.calibration import Calibration, Corpus, evenly_spaced
from registry.checkpoint import read_files, tokenizer_digest
from registry.checkpoint.documents import read_config
from registry.checkpoint.tokenizer import tokenizer_conflict
from registry.composing.dense import write_dense
from registry.composing.folder import composed_of
from registry.composing.member import Member
from registry.errors import CalibrationError, CheckpointError, IncompatibleError, InvalidInputError
from registry.loading import load_model, load_tokenizer
from registry.progress import Advance, Progress, remark

_LARGEST_LOSS = 700.0
"""From here on exp(loss) is too large for a float."""


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
        tokens: domain → predicted tokens, on which the figures stand.
    """

    name: str
    perplexity: dict[str, float]
    score: dict[str, float]
    tokens: dict[str, int] = field(default_factory=dict)

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
        folders: model folders; the first one's tokenizer makes the windows, and no other may contradict it.
        data: domain → test files.
        registered: active base models, and experts named like a domain; those of another tokenizer take no part.
        settings: how test text is scored.
        baselines: rows also for base models, experts and the experts' average.
        progress: told of windows scored, and in remarks of every figure that there cannot be, with the reason.

    Raises:
        InvalidInputError: there is no folder or no data.
        IncompatibleError: a folder's tokenizer contradicts the first one's.
        CalibrationError: a file cannot be read, or holds no text or a single token.
        CheckpointError: a folder has no tokenizer, does not load, a key is missing, unexpected or mismatched, or a loss
            is NaN or infinite.
    """
    if not folders or not data:
        raise InvalidInputError("there is nothing to evaluate", "run: reg evaluate moe/ --data code=FILE")
    files = read_files(folders[0])
    digest = tokenizer_digest(files)
    for folder in folders[1:]:
        if conflict := _conflict(files, read_files(folder)):
            raise IncompatibleError(
                f"{folders[0]} and {folder} cannot stand in one table: their tokenizers differ: {conflict}",
                "evaluate each with a command of its own",
            )
    names = [folder.name for folder in folders]
    shown = [f.name if f.name and names.count(f.name) == 1 else str(f) for f in folders]
    reasons = {
        member.version.ref: f"{member.version.ref} has another tokenizer than {shown[0]}: {conflict}"
        for member in registered
        if member.content["tokenizer"] != digest
        and (conflict := _conflict(files, {name: member.file(name) for name in member.names("file")}))
    }
    comparable = [member for member in registered if member.version.ref not in reasons]
    limits = {
        name: read_config(folder).get("max_position_embeddings") for name, folder in zip(shown, folders, strict=True)
    }
    limits |= {member.version.ref: member.architecture.max_position_embeddings for member in comparable}
    settings = _shortened(settings, {name: n for name, n in limits.items() if isinstance(n, int) and n > 1}, progress)
    windows = test_windows(data, folders[0], settings)
    largest = max(int(w.ids.max()) for w in windows.values())
    for member in comparable:
        if largest >= member.architecture.vocab_size:
            reasons[member.version.ref] = f"{member.version.ref} does not know token {largest} of the text"
    comparable = [member for member in comparable if member.version.ref not in reasons]
    composed = composed_of(folders[0])
    experts = _own_experts(comparable, list(data), composed)
    for domain in data:
        if domain not in experts:
            why = _missing(domain, registered, composed.get(domain), reasons, shown[0])
            remark(progress, f"no normalised score for {domain}: {why}")
    rows: dict[str, dict[str, float]] = {}
    with TemporaryDirectory(prefix="reg-") as temporary:

        def measure(name: str, members: Sequence[Member], domains: Iterable[str]) -> dict[str, float]:
            folder = Path(temporary) / name
            write_dense(members, folder, progress)
            figures = perplexities(name, folder, {domain: windows[domain] for domain in domains}, settings, progress)
            shutil.rmtree(folder)
            return figures

        if baselines:
            bases = [member for member in comparable if member.version.kind == "base"]
            if not bases:
                refused = [reasons[m.version.ref] for m in registered if m.version.kind == "base"]
                remark(progress, f"no row for a base model: {'; '.join(refused) or 'none is registered'}")
            for member in bases:
                rows[f"base {member.version.ref}"] = measure(member.version.ref, [member], windows)
            for domain, member in experts.items():
                rows[f"expert {domain}"] = measure(member.version.ref, [member], windows)
            members = [experts[name] for name in sorted(experts)]
            if len(members) < 2:
                remark(progress, f"no row for the average: it needs experts of two domains, there are {len(members)}")
            elif any(member.architecture != members[0].architecture for member in members):
                remark(progress, "no row for the average: the experts' architectures differ")
            else:
                rows["average"] = measure("average", members, windows)
            own = {domain: rows[f"expert {domain}"][domain] for domain in experts}
        else:
            own = {d: measure(member.version.ref, [member], [d])[d] for d, member in experts.items()}
    for name, folder in zip(shown, folders, strict=True):
        rows[name] = perplexities(name, folder, windows, settings, progress)
    tokens = {domain: _predicted(w) for domain, w in windows.items()}
    return [Row(name, ppl, {d: 100 * own[d] / ppl[d] for d in own}, tokens) for name, ppl in rows.items()]


def _conflict(mine: Mapping[str, bytes], theirs: Mapping[str, bytes]) -> str | None:
    """Return in what two models' tokenizers contradict one another, or None where the same text is the same tokens."""
    digests = [tokenizer_digest(files) for files in (mine, theirs)]
    if digests[0] == digests[1]:
        return None
    if "tokenizer.json" in mine and "tokenizer.json" in theirs:
        return tokenizer_conflict(mine["tokenizer.json"], theirs["tokenizer.json"])
    short = ["none" if digest is None else digest[:12] for digest in digests]
    return f"digest {short[0]} against {short[1]}, and not both have a tokenizer.json that could be compared"


def _shortened(settings: TestSettings, limits: Mapping[str, int], progress: Progress) -> TestSettings:
    """Return `settings` with windows that every model can take; `limits` is what each can."""
    name = min(limits, key=lambda name: limits[name], default=None)
    if name is None or settings.seq_len <= limits[name]:
        return settings
    remark(progress, f"windows have {limits[name]:,} tokens, not {settings.seq_len:,}: {name} takes no more")
    return replace(settings, seq_len=limits[name])


def _missing(
    domain: str, registered: Sequence[Member], composed: str | None, reasons: Mapping[str, str], first: str
) -> str:
    """Return why `domain` has no expert to be scored against."""
    versions = [m.version for m in registered if m.version.name == domain and m.version.kind == "expert"]
    if not versions:
        return "no expert of that name is registered"
    if composed is None:
        return reasons[versions[-1].ref]
    used = next((version for version in versions if version.digest == composed), None)
    if used is None:
        return f"the version that {first} was composed of ({composed[:12]}) is not an active one here"
    return reasons[used.ref]


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
        CalibrationError: a file cannot be read, or holds no text or a single token.
        CheckpointError: the folder has no tokenizer.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    windows = {
        domain: evenly_spaced(Corpus(files, tokenizer), tokenizer, windows=settings.windows, seq_len=settings.seq_len)
        for domain, files in data.items()
    }
    for domain, taken in windows.items():
        if _predicted(taken) == 0:
            raise CalibrationError(
                f"the text of domain {domain} ({taken.label}) is a single token: there is nothing to predict",
                f"give more: --data {domain}=FILE",
            )
    return windows


test_windows.__test__ = False  # type: ignore[attr-defined]


def perplexities(
    name: str, folder: Path, windows: Mapping[str, Calibration], settings: TestSettings, progress: Progress
) -> dict[str, float]:
    """Return the perplexity of the model in `folder` on each domain.

    Raises:
        CheckpointError: the folder does not load, a key is missing, unexpected or mismatched, a token is unknown to the
            model, or its loss is NaN or infinite.
    """
    model = load_model(folder, settings.dtype, settings.device)
    known, largest = model.get_input_embeddings().num_embeddings, max(int(w.ids.max()) for w in windows.values())
    if largest >= known:
        raise CheckpointError(
            f"{name}: the tokenizer gives token {largest}, the model knows {known}",
            "put the tokenizer that the model was trained with into the folder",
        )
    total = sum(len(w.ids) for w in windows.values())
    found = {}
    with progress(f"evaluating {name}", total, "window") as advance:
        for domain, w in windows.items():
            loss = _loss(model, w, settings.batch_size, advance)
            found[domain] = math.exp(loss) if loss < _LARGEST_LOSS or math.isnan(loss) else math.inf
            if not math.isfinite(found[domain]):
                raise CheckpointError(
                    f"{name}: its loss on domain {domain} is {loss:g} nats a token, which gives no perplexity",
                    "check its weights, or compute with --dtype float32",
                )
    return found


@torch.no_grad()
def _loss(model: Any, windows: Calibration, batch_size: int, advance: Advance) -> float:
    loss = 0.0
    for ids, keep in zip(windows.ids.split(batch_size), windows.keep.split(batch_size), strict=True):
        tokens = ids.long().to(model.device)
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        targets = tokens[:, 1:].masked_fill(~keep[:, 1:].to(model.device), -100)
        loss += F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum").item()
        advance(len(ids))
    return loss / _predicted(windows)


def _predicted(windows: Calibration) -> int:
    """Return how many tokens are predicted: all that count but the first of each window."""
    return int((windows.lengths - 1).sum())
