"""A model folder under examination: what checks read and run, each made once and only when it is first needed.

Its text is given, else the members' own, kept or sampled, else a few built-in passages.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from registry.calibration import Calibration, sample_from_expert
from registry.checkpoint import read_files
from registry.checkpoint.model_files import Stored, read_config, read_headers, weight_files
from registry.composition.manifest import ComposedFolder
from registry.doctor.finding import Finding
from registry.doctor.tensor_names import tensors_of
from registry.errors import CalibrationError, RegError
from registry.evaluation.benchmark import dense_model, predicted, text_windows
from registry.evaluation.results import TestSettings
from registry.evaluation.scoring import Model, Tally, losses_of, open_model
from registry.io.model_folder import MARKER
from registry.io.untrusted import own_file, read_json
from registry.io.work_dirs import temporary_folder
from registry.member import Member, load_members
from registry.progress import Progress, remark, silent
from registry.runtime.loading import has_our_code, load_tokenizer
from registry.workspace import Workspace
from store.catalog import EvaluationRecord

ADDED = "is not a file of the composition"
"""End of the line on a file that was put into the folder later, which breaks nothing."""

FLOATS = ("F64", "F32", "F16", "BF16")  # dtypes, in the spelling of safetensors, whose values are weights as they are
WINDOWS, SEQ_LEN = 8, 128
"""Windows of a domain, and tokens in one: enough to tell a broken model, and seconds for a small one."""

CHEAP = 2**29  # parameters of a member up to which it is loaded from the registry
_SAMPLED_TOKENS = 256
_UNKNOWN = 0.5  # share of unknown tokens from which on a built-in text says nothing about a model
Source = Literal["given", "kept", "sampled", "built-in"]


@dataclass(frozen=True)
class DomainTexts:
    """Windows of each domain, and where they are from: one source for all of them."""

    windows: dict[str, Calibration]
    source: Source


@dataclass
class Examination:
    """A model folder, which may come from anywhere; `perplexity` has domains once they were computed."""

    path: Path
    workspace: Workspace | None
    data: Mapping[str, Sequence[Path]]
    device: str | None
    progress: Progress
    findings: list[Finding] = field(default_factory=list)
    perplexity: dict[str, float] = field(default_factory=dict)

    @property
    def quoted(self) -> str:
        """The folder as a word of a command line."""
        return shlex.quote(str(self.path))

    @property
    def again(self) -> str | None:
        """The command that composes the folder again, if its files are not those that were composed."""
        if self.composed is None or not self.changes:
            return None
        marker, out = self.path / MARKER, self.path.with_name(f"{self.path.name}-again")
        return f"reg compose --recipe {shlex.quote(str(marker))} --out {shlex.quote(str(out))}"

    @property
    def evaluations(self) -> Sequence[EvaluationRecord]:
        """The stored evaluations of the composition, the latest first; none where it is not known."""
        if self.composed is None or self.workspace is None:
            return ()
        return self.workspace.catalog.evaluations(self.composed.digest)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        return read_config(self.path)

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """The content of generation_config.json; empty without one."""
        path = own_file(self.path, "generation_config.json")
        return {} if path is None else read_json(path)

    @cached_property
    def tensors(self) -> dict[str, Stored]:
        """Every tensor's place, by name."""
        return read_headers(weight_files(self.path))

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        read_files(self.path)  # checks sizes and links before a library reads the files
        return load_tokenizer(self.path)

    @cached_property
    def embedding_rows(self) -> int | None:
        """Rows of the smallest embedding of tokens; None if no tensor has a known name of one."""
        shapes = (self.tensors[name].shape for name in tensors_of("embedding", self.tensors))
        return min((shape[0] for shape in shapes if shape), default=None)

    @cached_property
    def has_our_code(self) -> bool:
        """True if the folder has a modelling file, and it is this program's own."""
        return has_our_code(self.path)

    @cached_property
    def composed(self) -> ComposedFolder | None:
        """The composition that the folder is; None if it is not one, or its composition.json cannot be read."""
        try:
            return ComposedFolder.read(self.path) if (self.path / MARKER).is_file() else None
        except RegError:
            return None

    @cached_property
    def changes(self) -> list[str]:
        """A line for each file that is not as it was composed; files that were added do not count."""
        found = [] if self.composed is None else self.composed.problems(self.progress)
        return [line.replace(f"{self.path}/", "", 1) for line in found if not line.endswith(ADDED)]

    @cached_property
    def members(self) -> dict[str, Member]:
        """Name → registered version of the members, where all are active in the registry; else empty."""
        if self.composed is None or self.workspace is None or self.composed.manifest.from_base is not None:
            return {}
        wanted = {member.name: member.digest for member in self.composed.manifest.members}
        versions = [
            version
            for version in self.workspace.versions()
            if version.digest == wanted.get(version.name) and version.kind == "expert"
        ]
        members = {member.name: member for member in load_members(self.workspace, versions)}
        return members if members.keys() == wanted.keys() else {}

    @cached_property
    def settings(self) -> TestSettings:
        """The settings of scoring, with windows that the model takes."""
        longest = self.config.get("max_position_embeddings")
        fits = min(SEQ_LEN, longest) if isinstance(longest, int) and longest > 1 else SEQ_LEN
        return TestSettings(windows=WINDOWS, seq_len=fits, batch_size=WINDOWS, device=self.device)

    @cached_property
    def texts(self) -> DomainTexts:
        """The text of each domain (errors as `text_windows`)."""
        if self.data:
            return DomainTexts(text_windows(self.data, self.path, self.settings), "given")
        kept = {name: _kept(member, self.settings) for name, member in self.members.items()}
        if kept and all(text is not None for text in kept.values()):
            return DomainTexts({name: text for name, text in kept.items() if text is not None}, "kept")
        if kept and all(is_cheap(member) for member in self.members.values()):
            try:
                written = {name: kept[name] or _sampled(self, member) for name, member in self.members.items()}
                return DomainTexts(written, "sampled")
            except RegError as failure:
                remark(self.progress, f"no text of the members: {failure.message}; built-in text is used")
        return DomainTexts(_built_in(self), "built-in")

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
    def scored(self) -> dict[str, float]:
        """Domain → perplexity."""
        return self._pass[0]

    @property
    def routing(self) -> dict[str, dict[str, list[float]]]:
        """Domain → expert → share of the domain's tokens that go to it first, by layer."""
        tally = self._pass[1]
        assert tally is not None
        return tally.routing(self.model.expert_names)

    @cached_property
    def _pass(self) -> tuple[dict[str, float], Tally | None]:
        tally = Tally(self.model.layers, self.model.experts) if self.model.experts else None
        found = self.perplexities_of(self.model, self.texts.windows, tally)
        self.perplexity.update(found)
        return found, tally

    def perplexities_of(
        self, model: Model, windows: Mapping[str, Calibration], tally: Tally | None = None
    ) -> dict[str, float]:
        """Return domain → perplexity of a model."""
        losses = losses_of(model, windows, self.settings, self.progress, tally=tally)
        return {domain: loss.perplexity for domain, loss in losses.items()}


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


def is_cheap(member: Member) -> bool:
    """Tell whether a member is small enough to be loaded too."""
    return sum(map(math.prod, member.shapes.values())) <= CHEAP


def _kept(member: Member, settings: TestSettings) -> Calibration | None:
    text = member.calibration
    if text is None:
        return None
    ids, lengths = text.ids[:WINDOWS, : settings.seq_len], text.lengths[:WINDOWS].clamp(max=settings.seq_len)
    found = Calibration(ids, lengths, text.label)
    return found if predicted(found) > 0 else None


def _sampled(folder: Examination, member: Member) -> Calibration:
    seq_len, special = min(64, folder.settings.seq_len), member.content["special_tokens"]
    with dense_model(member.name, [member], folder.settings) as model:
        return sample_from_expert(
            model.loaded, special, tokens=_SAMPLED_TOKENS, seq_len=seq_len, batch_size=4, progress=silent
        )


def _built_in(folder: Examination) -> dict[str, Calibration]:
    with temporary_folder() as temporary:
        files = {}
        for domain, text in BUILT_IN.items():
            path = temporary / f"{domain}.txt"
            path.write_text(text, encoding="utf-8")
            files[domain] = [path]
        texts = text_windows(files, folder.path, folder.settings)
    unknown = getattr(folder.tokenizer, "unk_token_id", None)
    known = {
        domain: text
        for domain, text in texts.items()
        if unknown is None or int((text.ids == unknown).sum()) / text.tokens < _UNKNOWN
    }
    if not known:
        raise CalibrationError(
            "its vocabulary is not that of a natural language, so no built-in text can be read",
            f"give text of its own: reg doctor {folder.quoted} --data DOMAIN=FILE",
        )
    return known
