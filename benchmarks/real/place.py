"""What is measured, and where it lies: base model, adapters, text of domains, conversations of skills."""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from registry import ExpertTraining, PassSettings, Registry

WINDOW = 256  # tokens
JOINT = "joint"
"""Name of the adapter that was trained on the text of all domains."""


@dataclass(frozen=True)
class Size:
    """How much is trained and measured.

    Attributes:
        domains, skills: what adapters are trained for where none are given.
        domain_steps, skill_steps: steps of a training, of 8 windows or 16 conversations.
        windows, prompts: of a domain and of a skill, in a test.
        tokens: of each calibration, and those that the base model writes.
        questions: of each benchmark of what the base model could do before; facts are asked always.
    """

    domains: tuple[str, ...]
    skills: tuple[str, ...]
    domain_steps: int
    skill_steps: int
    windows: int
    prompts: int
    questions: int
    tokens: int = 24_576


SIZES = {
    "full": Size(("biomed", "code", "german", "math"), ("change", "continents", "kinds"), 170, 120, 32, 90, 541),
    "small": Size(("code", "german"), ("kinds",), 12, 30, 8, 45, 0, 4096),
    "tiny": Size(("code",), ("kinds",), 1, 1, 1, 2, 1, 1024),
}


@dataclass(frozen=True)
class Place:
    """Where everything is, and how much of it is used."""

    base: Path
    adapters: Path
    corpora: Path
    skills: Path
    questions: Path
    work: Path
    size: Size
    tokenizer: Any = field(repr=False)

    @property
    def domains(self) -> list[str]:
        """The domains that have an adapter, in name order."""
        return self._named("dom_")

    @property
    def tasks(self) -> list[str]:
        """The skills that have an adapter, in name order."""
        return self._named("task_")

    @property
    def groups(self) -> list[list[str]]:
        """Members of each table: all domains, if there are three and skills beside them; and everything."""
        every = [*self.domains, *self.tasks]
        return [self.domains, every] if len(every) > len(self.domains) > 2 else [every]

    def _named(self, start: str) -> list[str]:
        """Return what adapters are of, by the beginning of their folders' names."""
        found = (path.name for path in self.adapters.glob(f"{start}*") if (path / "adapter_config.json").exists())
        return sorted(name.removeprefix(start) for name in found)

    def adapter(self, name: str) -> Path:
        """Return the PEFT folder of a domain or skill, or of `JOINT`."""
        return self.adapters / (f"task_{name}" if name in self.tasks else name if name == JOINT else f"dom_{name}")

    def text(self, name: str, part: str) -> Path:
        """Return the `train` or `test` text of a domain or skill."""
        is_domain = name in self.domains or (self.corpora / name).exists()  # a skill may have a domain's name
        return self.corpora / name / f"{part}.jsonl.gz" if is_domain else self.skills / f"task_{name}.{part}.jsonl.gz"


def train(place: Place) -> None:
    """Train the adapters of a size that are not there yet, and one on the text of all domains together."""
    size, at = place.size, place.adapters
    at.mkdir(parents=True, exist_ok=True)
    skills = size.skills if place.tokenizer.chat_template else ()
    jobs = [(f"dom_{name}", [name], 16, size.domain_steps, 8) for name in size.domains]
    jobs += [(f"task_{name}", [name], 8, size.skill_steps, 16) for name in skills]
    jobs += [(JOINT, list(size.domains), 16, size.domain_steps * len(size.domains), 8)] * (len(size.domains) > 1)
    with Registry(place.work / "training") as registry:
        for folder, names, rank, steps, batch in jobs:
            if (at / folder).exists():
                continue
            settings = ExpertTraining(
                lora=rank, tokens=steps * batch * WINDOW, batch_size=batch, lr=6e-4 if rank == 16 else 1e-3,
                weight_decay=0.0,
            )  # fmt: skip
            data = [place.text(name, "train") for name in names]
            done = registry.train_expert(names[0], place.base, data, settings, out=at / folder)
            print(f"{folder}: {steps} steps, loss {done.losses.before:.3f} → {done.losses.after:.3f}", flush=True)


def register(place: Place) -> None:
    """Register the base model, with text of its own, and every adapter."""
    settings = PassSettings(tokens=place.size.tokens, seq_len=WINDOW)
    with Registry(place.work / "home") as registry:
        known = {version.name for version in registry.versions()}
        base = place.base.absolute().name.lower()
        if base not in known:
            registry.add_base(base, place.base, own_text=place.size.tokens, remote_code=True)
        for name in (*place.domains, *place.tasks):
            if name not in known:
                registry.add_expert(
                    name, place.adapter(name), base=base, data=[place.text(name, "train")], settings=settings,
                    keep_calibration=True,
                )  # fmt: skip


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def windows_of(place: Place, domain: str, length: int = WINDOW) -> Tensor:
    """Return the test windows of a domain, (N, length), each beginning as the tokenizer begins a text."""
    begin, ids = place.tokenizer("")["input_ids"], list[int]()
    new = length - len(begin)
    for row in rows_of(place.corpora / domain / "test.jsonl.gz"):
        ids += [*place.tokenizer(row["text"], add_special_tokens=False)["input_ids"], place.tokenizer.eos_token_id]
        if len(ids) >= place.size.windows * new:
            break
    cut = torch.tensor(ids)[: place.size.windows * new].view(-1, new)
    return torch.cat([torch.tensor(begin, dtype=torch.long).expand(len(cut), -1), cut], 1)


def conversations(place: Place, tasks: Sequence[str]) -> dict[str, list[list[dict[str, str]]]]:
    """Return conversations, each up to its last answer, by skill; and by A → B those that begin with another skill."""
    own = {
        task: [row["messages"] for row in islice(rows_of(place.text(task, "test")), place.size.prompts)]
        for task in tasks
    }
    found = dict(own)
    for first, then in zip(tasks, (*tasks[1:], *tasks[:1]), strict=True):
        if first != then:
            pairs = zip(own[first], own[then], strict=False)
            found[f"{first} → {then}"] = [[*before, *after] for before, after in pairs]
    return found
