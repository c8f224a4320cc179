"""Where the tables of `papers` are measured: text, registries, and how compositions are scored.

Rows are perplexities: name → test domain → perplexity.
"""

import gzip
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from registry import Recipe, Registry, TestSettings
from registry.evaluation import METHODS
from registry.evaluation.results import DomainLoss, Row, over_seeds

Figures = dict[str, Any]

NEAR = ("biomed", "code", "german", "literature", "math")
BASE, PUBLIC, GENERAL, FREE = "base", "public", "general", "free"

DUME = Recipe(**METHODS["dume-eq-4"].settings)
"""DUME as published: gates of equations 4 and 7, the closed form solved again on tokens forced through each expert."""
WEIGHT_ONE = Recipe(**METHODS["dume"].settings, temperature=1.0)
"""The same with weights that add up to 1, which is ours: of the softmax over all the one expert may keep little."""


@dataclass(frozen=True)
class Bench:
    """Where everything is, and how much of it.

    Attributes:
        shared: the folder with `experts` and `corpora`.
        work: a folder for registries and compositions.
        tokens: training tokens of each expert.
        batch: windows of 256 tokens in a step of the training of weights.
        lr: its highest learning rate.
        mixed_batch: windows in a step of a training on text of several domains.
        mixed_lr: its highest learning rate.
        windows: test windows of each domain.
        steps: of a training of routers.
        seeds: of random routers and of trainings of routers, in DUME's Table 2.
    """

    shared: Path
    work: Path
    tokens: int
    batch: int
    lr: float
    mixed_batch: int
    mixed_lr: float
    windows: int
    steps: int
    seeds: int

    def text(self, domain: str, part: str) -> Path:
        """Return the file of a domain's `train` or `test` text."""
        return self.shared / "corpora" / domain / f"{part}.jsonl.gz"

    def lines(self, domain: str, part: str, number: int) -> list[str]:
        """Return the first lines of a domain's text, a document each."""
        with gzip.open(self.text(domain, part), "rt", encoding="utf-8") as file:
            return list(islice(file, number))

    def home(self, kind: str) -> Path:
        """Return the registry of a kind of experts: free ones are those of SHARED."""
        return self.work / ("shared-experts" if kind == FREE else f"{kind}-{self.tokens}")

    def training(self, times: float = 1) -> dict[str, Any]:
        """Return the settings of a training of so many times the tokens of an expert, at an expert's rate."""
        return {"tokens": int(times * self.tokens), "batch_size": self.batch, "lr": self.lr}

    def mixed_training(self, share: float = 1) -> dict[str, Any]:
        """Return the settings of a training on text of several domains, of a share of the tokens of an expert.

        The base model has learnt from such text already: at an expert's rate, few tokens make it worse.
        """
        return {"tokens": int(share * self.tokens), "batch_size": self.mixed_batch, "lr": self.mixed_lr}

    @property
    def settings(self) -> TestSettings:
        """How test text is scored."""
        return TestSettings(windows=self.windows)

    def tests(self, domains: Sequence[str], *, general: bool = True) -> dict[str, list[Path]]:
        """Return the test files of some domains and, unless `general` is False, of the public text."""
        names = (*domains, GENERAL) if general else domains
        return {domain: [self.text(domain, "test")] for domain in names}


def kept(rows: Mapping[str, Row]) -> Figures:
    """Return the figures of rows that were scored on the same text: perplexities, and of each window nats a token.

    Those of all windows of a domain are one text, so that files stay short; `predicted` are the windows' tokens.
    """
    blocks = {name: {domain: loss.blocks() for domain, loss in row.losses.items()} for name, row in rows.items()}
    predicted = {domain: loss.tokens for row in blocks.values() for domain, loss in row.items()}
    return {
        "rows": {name: row.perplexity for name, row in rows.items()},
        "nats": {name: {domain: _means(loss) for domain, loss in row.items()} for name, row in blocks.items()},
        "predicted": {domain: " ".join(map(str, tokens)) for domain, tokens in predicted.items()},
    }


def _means(loss: DomainLoss) -> str:
    return " ".join(f"{nats / max(1, tokens):.4f}" for nats, tokens in zip(loss.nats, loss.tokens, strict=True))


def averaged(rows: Sequence[Row]) -> Row:
    """Return the mean of a row over seeds or draws, window by window too."""
    losses = {
        domain: replace(loss, nats=tuple(map(fmean, zip(*(row.losses[domain].nats for row in rows), strict=True))))
        for domain, loss in rows[0].losses.items()
    }
    return replace(over_seeds(rows), losses=losses)


def fresh(bench: Bench, name: str) -> Path:
    """Return an absent folder of that name for a composition."""
    folder = bench.work / "folders" / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def register_base(registry: Registry, bench: Bench) -> set[str]:
    """Register the base model of SHARED if it is not there, and return all names that are."""
    names = {version.name for version in registry.versions()}
    if BASE not in names:
        registry.add_base(BASE, bench.shared / "experts" / BASE)
    return names


def register_shared(registry: Registry, bench: Bench) -> None:
    """Register the experts of SHARED that are not there, the base model among them as `public`."""
    names = register_base(registry, bench)
    for expert, folder, domain in (*((name, name, name) for name in NEAR), (PUBLIC, BASE, GENERAL)):
        if expert not in names:
            text = [bench.text(domain, "train")]
            registry.add_expert(expert, bench.shared / "experts" / folder, data=text, keep_calibration=True)
