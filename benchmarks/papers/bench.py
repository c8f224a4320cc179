"""Where the tables of `papers` are measured: text, registries, and how compositions are scored.

Rows are perplexities: name → test domain → perplexity.
"""

import gzip
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from registry import Registry, TestSettings

Figures = dict[str, Any]
Rows = dict[str, dict[str, float]]

NEAR = ("biomed", "code", "german", "literature", "math")
FAR = ("c_headers", "chinese")
BASE, PUBLIC, GENERAL = "base", "public", "general"


@dataclass(frozen=True)
class Bench:
    """Where everything is, and how much of it.

    Attributes:
        shared: the folder with `experts` and `corpora`.
        far: a folder with `corpora` of far experts, or None.
        work: a folder for registries and compositions.
        tokens: training tokens of each expert.
        batch: windows of 256 tokens in a step of the training of weights.
        lr: its highest learning rate.
        mixed_batch: windows in a step of a training on text of several domains.
        mixed_lr: its highest learning rate.
        windows: test windows of each domain.
        steps: of a short and of a long training of routers.
    """

    shared: Path
    far: Path | None
    work: Path
    tokens: int
    batch: int
    lr: float
    mixed_batch: int
    mixed_lr: float
    windows: int
    steps: Sequence[int]

    def text(self, domain: str, part: str) -> Path:
        """Return the file of a domain's `train` or `test` text."""
        root = self.far if domain in FAR and self.far else self.shared
        return root / "corpora" / domain / f"{part}.jsonl.gz"

    def lines(self, domain: str, part: str, number: int) -> list[str]:
        """Return the first lines of a domain's text, a document each."""
        with gzip.open(self.text(domain, part), "rt", encoding="utf-8") as file:
            return list(islice(file, number))

    def home(self, kind: str) -> Path:
        """Return the registry of a kind of experts."""
        return self.work / f"{kind}-{self.tokens}"

    def training(self, times: int = 1) -> dict[str, Any]:
        """Return the settings of a training on one domain's text, of so many times the tokens of an expert."""
        return {"tokens": times * self.tokens, "batch_size": self.batch, "lr": self.lr}

    def mixed_training(self, times: int = 1) -> dict[str, Any]:
        """Return the settings of a training on text of several domains, of so many times the tokens of an expert.

        The base model has learnt from such text already: at an expert's rate, few tokens make it worse.
        """
        return {"tokens": times * self.tokens, "batch_size": self.mixed_batch, "lr": self.mixed_lr}

    @property
    def settings(self) -> TestSettings:
        """How test text is scored."""
        return TestSettings(windows=self.windows)

    def tests(self, domains: Sequence[str], *, general: bool = True) -> dict[str, list[Path]]:
        """Return the test files of some domains and, unless `general` is False, of the public text."""
        names = (*domains, GENERAL) if general else domains
        return {domain: [self.text(domain, "test")] for domain in names}


def fresh(bench: Bench, name: str) -> Path:
    """Return an absent folder of that name for a composition."""
    folder = bench.work / "folders" / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def register_shared(registry: Registry, bench: Bench) -> None:
    """Register the base model and the experts of SHARED that are not there."""
    names = {version.name for version in registry.versions()}
    if BASE not in names:
        registry.add_base(BASE, bench.shared / "experts" / BASE)
    for domain in NEAR:
        if domain not in names:
            text = [bench.text(domain, "train")]
            registry.add_expert(domain, bench.shared / "experts" / domain, data=text, keep_calibration=True)
