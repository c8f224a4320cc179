"""The loaded model of a folder under examination, and one pass of it over the text of every domain."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from registry.calibration import Calibration, sample_from_expert
from registry.checkpoint import Checkpoint
from registry.composition.dense import write_dense
from registry.doctor.examined_folder import ExaminedFolder, listed
from registry.errors import CalibrationError, RegError
from registry.evaluation.results import TestSettings
from registry.evaluation.scoring import Model, Tally, open_model, perplexities_of
from registry.evaluation.text import predicted, test_windows
from registry.io.model_folder import composed_of
from registry.io.work_dirs import temporary_folder
from registry.member import Member
from registry.progress import remark, silent

BUILT_IN = {
    "English": (
        "The old harbour was quiet in the morning. A few boats lay at the wall, and a man was mending a net beside "
        "the largest of them. He had come here every day for thirty years, first with his father and later with his "
        "son, and he knew the names of all the people who passed. When the church clock struck nine, the children ran "
        "down the hill to the school, and the shops along the street opened one after another. It was the first warm "
        "day of the year. By noon the square would be full of people who talked about the weather, the price of fish, "
        "and the new bridge over the river."
    ),
    "code": (
        "import json\n\n\ndef load(path):\n    with open(path) as file:\n        return json.load(file)\n\n\n"
        "class Counter:\n    def __init__(self):\n        self.counts = {}\n\n    def add(self, name):\n"
        "        if name not in self.counts:\n            self.counts[name] = 0\n        self.counts[name] += 1\n"
        "        return self.counts[name]\n\n\nfor i in range(10):\n    print(i, i * i)\n"
    ),
    "mathematics": (
        "Let n be a positive integer. We show that the sum of the first n odd numbers is n squared. For n = 1 the sum "
        "is 1, which is true. Suppose that the claim holds for n. Then the sum of the first n + 1 odd numbers is "
        "n * n + 2 * n + 1 = (n + 1) * (n + 1), so it holds for n + 1 too. If x + 3 = 7, then x = 4."
    ),
    "German": (
        "Der Wald liegt hinter dem Haus, und im Winter ist er still. Am Morgen gehen die Kinder über die Brücke in "
        "die Schule, und am Abend kommen sie mit der Bahn zurück. Die Stadt ist nicht groß, aber sie hat einen alten "
        "Markt, auf dem es jeden Samstag Brot, Käse und Blumen gibt."
    ),
}
"""Domain → its text."""


WINDOWS, SEQ_LEN = 8, 128
"""Windows of a domain, and tokens in one: enough to tell a broken model, and seconds for a small one."""

CHEAP = 2**29
"""Parameters of a member up to which it is loaded from the registry."""

_SAMPLED_TOKENS = 256

_UNKNOWN = 0.5
"""Share of unknown tokens from which on a built-in text says nothing about a model."""

Source = Literal["given", "kept", "sampled", "built-in"]


@dataclass(frozen=True)
class DomainTexts:
    """Windows of each domain, and where they are from: one source for all of them."""

    windows: dict[str, Calibration]
    source: Source


def domain_texts(folder: ExaminedFolder, settings: TestSettings) -> DomainTexts:
    """Return the text of each domain.

    Raises:
        CalibrationError: a given file cannot be read, or holds no text.
        CheckpointError: the tokenizer fails on it.
    """
    if folder.data:
        return DomainTexts(test_windows(folder.data, folder.path, settings), "given")
    kept = {name: _kept(member, settings) for name, member in folder.members.items()}
    if kept and all(text is not None for text in kept.values()):
        return DomainTexts({name: text for name, text in kept.items() if text is not None}, "kept")
    if kept and all(is_cheap(member) for member in folder.members.values()):
        try:
            return DomainTexts(
                {name: kept[name] or _sampled(folder, member, settings) for name, member in folder.members.items()},
                "sampled",
            )
        except RegError as failure:
            remark(folder.progress, f"no text of the members: {failure.message}; built-in text is used")
    return DomainTexts(_built_in(folder, settings), "built-in")


def is_cheap(member: Member) -> bool:
    """Tell whether a member is small enough to be loaded beside the folder."""
    return sum(math.prod(link.shape) for link in member.arrays if link.role in ("trunk", "mlp")) <= CHEAP


@contextmanager
def dense_model(folder: ExaminedFolder, name: str, members: list[Member], settings: TestSettings) -> Iterator[Model]:
    """Open the averaged weights of members, or a single one, from the registry."""
    with temporary_folder() as temporary:
        out = temporary / "dense"
        write_dense(members, out, silent)
        yield open_model(name, out, settings)


def _kept(member: Member, settings: TestSettings) -> Calibration | None:
    text = member.calibration
    if text is None:
        return None
    ids, lengths = text.ids[:WINDOWS, : settings.seq_len], text.lengths[:WINDOWS].clamp(max=settings.seq_len)
    found = Calibration(ids, lengths, text.label)
    return found if predicted(found) > 0 else None


def _sampled(folder: ExaminedFolder, member: Member, settings: TestSettings) -> Calibration:
    with temporary_folder() as temporary:
        out = temporary / "dense"
        write_dense([member], out, silent)
        model, special = open_model(member.name, out, settings).loaded, Checkpoint(out).special_tokens
    end = [number for number in listed(special["eos_token_id"]) if isinstance(number, int)]
    start = special["bos_token_id"]
    return sample_from_expert(
        model,
        start=start if isinstance(start, int) else next(iter(end), None),
        end=end,
        tokens=_SAMPLED_TOKENS,
        seq_len=min(64, settings.seq_len),
        batch_size=4,
        progress=silent,
    )


def _built_in(folder: ExaminedFolder, settings: TestSettings) -> dict[str, Calibration]:
    with temporary_folder() as temporary:
        files = {}
        for domain, text in BUILT_IN.items():
            path = temporary / f"{domain}.txt"
            path.write_text(text, encoding="utf-8")
            files[domain] = [path]
        texts = test_windows(files, folder.path, settings)
    unknown = getattr(folder.tokenizer, "unk_token_id", None)
    known = {domain: text for domain, text in texts.items() if unknown is None or _share(text, unknown) < _UNKNOWN}
    if not known:
        raise CalibrationError(
            "its vocabulary is not that of a natural language, so no built-in text can be read",
            f"give text of its own: reg doctor {folder.quoted} --data DOMAIN=FILE",
        )
    return known


def _share(text: Calibration, token: int) -> float:
    return int((text.ids == token).sum()) / text.tokens


class Examination(ExaminedFolder):
    """A folder, and what its forward passes need; each is made once, when a check first asks for it."""

    @cached_property
    def settings(self) -> TestSettings:
        """The settings of scoring, with windows that the model takes."""
        longest = self.config.get("max_position_embeddings")
        fits = min(SEQ_LEN, longest) if isinstance(longest, int) and longest > 1 else SEQ_LEN
        return TestSettings(windows=WINDOWS, seq_len=fits, batch_size=WINDOWS, device=self.device)

    @cached_property
    def texts(self) -> DomainTexts:
        """The text of each domain."""
        return domain_texts(self, self.settings)

    @cached_property
    def model(self) -> Model:
        """The loaded model."""
        return open_model(self.path.name, self.path, self.settings)

    @property
    def uniform(self) -> int:
        """The perplexity of a uniform guess: the size of the vocabulary."""
        return self.embedding_rows or int(self.model.loaded.config.vocab_size)

    @property
    def look_closer(self) -> str:
        """The next step after bad predictions that nothing else explains."""
        if self.composed is None:
            return f"try text of its own domain: reg doctor {self.quoted} --data DOMAIN=FILE"
        data = " ".join(f"--data {name}=FILE" for name in list(self.members)[:2]) or "--data DOMAIN=FILE"
        return f"see which member or method is at fault: reg evaluate {self.quoted} {data} --baselines"

    @property
    def is_decided_by_prompt(self) -> bool:
        """True if the whole prompt weighs the members, so that no token before its end has a probability."""
        return "routing" in self.config and self.config.get("routing_tokens") == 0

    @cached_property
    def experts(self) -> tuple[str, ...]:
        """The names of the experts or members, in their order."""
        names = tuple(composed_of(self.path))
        return names if len(names) == self.model.experts else tuple(map(str, range(self.model.experts)))

    @property
    def scored(self) -> dict[str, float]:
        """Domain → perplexity."""
        return self._pass[0]

    @property
    def routing(self) -> dict[str, dict[str, list[float]]]:
        """Domain → expert → share of the domain's tokens that go to it first, by layer."""
        tally = self._pass[1]
        assert tally is not None
        return tally.routing(self.experts)

    @cached_property
    def _pass(self) -> tuple[dict[str, float], Tally | None]:
        tally = Tally(self.model.layers, self.model.experts) if self.model.experts else None
        found = perplexities_of(self.model, self.texts.windows, self.settings, self.progress, tally=tally)
        self.perplexity.update(found)
        return found, tally
