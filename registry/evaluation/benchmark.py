"""Benchmark of a table: the same windows of text for every row, and each domain's own expert."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from registry.calibration import Calibration, Corpus, evenly_spaced
from registry.checkpoint import read_files, tokenizer_digest
from registry.checkpoint.model_files import read_config
from registry.checkpoint.tokenizer import tokenizer_conflict
from registry.composition.plan import Plan
from registry.composition.stored import write_dense
from registry.errors import CalibrationError, IncompatibleError
from registry.evaluation.results import DomainLoss, TestSettings
from registry.evaluation.scoring import Losses, Model, losses_of, open_model
from registry.io.display import few
from registry.io.dtypes import AUTO
from registry.io.model_folder import composed_of, write_files
from registry.io.work_dirs import temporary_folder
from registry.member import Member
from registry.names.suggest import suggest
from registry.progress import Progress, remark, silent
from registry.runtime.loading import load_tokenizer
from registry.runtime.upcast import compute_dtype, report_dtype, stored_dtype


@dataclass(frozen=True)
class TokenizerSource:
    """The tokenizer of a model, called `label` in messages and `name` in tables."""

    label: str
    name: str
    files: Mapping[str, bytes]  # the tokenizer's files and config.json, by name
    limit: int | None  # the longest window that the model accepts, or None if it sets no limit
    composed: Mapping[str, str]  # member name → content digest, for a composition
    dtype: str | None = None  # the dtype of its weights; None for that of the folder's
    folder: Path | None = None  # the folder of the files, if they are in one

    @classmethod
    def of_folder(cls, folder: Path, name: str) -> "TokenizerSource":
        """Return the tokenizer of a model folder."""
        limit = read_config(folder).get("max_position_embeddings")
        usable = limit if isinstance(limit, int) and limit > 1 else None
        return cls(str(folder), name, read_files(folder), usable, composed_of(folder), folder=folder)

    @classmethod
    def of_plan(cls, plan: Plan) -> "TokenizerSource":
        """Return the tokenizer of compositions of a plan's members."""
        label = f"the composition of {', '.join(plan.names)}"
        composed = {member.name: member.version.digest for member in plan.members}
        return cls(
            label, label, plan.lead.files(), plan.lead.architecture.max_position_embeddings, composed, plan.dtype
        )


@dataclass(frozen=True)
class Benchmark:
    """The windows, and the registered models to compare with."""

    windows: Mapping[str, Calibration]
    experts: Mapping[str, Member]
    bases: tuple[Member, ...]
    no_base: str
    settings: TestSettings  # the settings of scoring; every model accepts windows of this length
    progress: Progress  # reports windows scored, and remarks on every figure that cannot be computed
    losses: Losses | None = None  # computes the losses of models in place of this process; None for this process
    work: Path | None = None  # the folder for models that are deleted again, default the system's temporary folder

    @property
    def tokens(self) -> dict[str, int]:
        """Domain → predicted tokens."""
        return {domain: predicted(windows) for domain, windows in self.windows.items()}

    @property
    def _here(self) -> TestSettings:
        """The settings of models in this process: on its processor, if others compute the losses."""
        return self.settings if self.losses is None else replace(self.settings, device="cpu")

    def dense(self, name: str, members: Sequence[Member]) -> AbstractContextManager[Model]:
        """Open the averaged weights of `members`, or a single member (`dense_model`)."""
        return dense_model(name, members, self._here, self.progress, self.work)

    def open(self, name: str, folder: Path) -> Model:
        """Load the model in a folder."""
        return open_model(name, folder, self._here)

    def losses_of(
        self, model: Model, windows: Mapping[str, Calibration] | None = None, **options: Any
    ) -> dict[str, DomainLoss]:
        """Return the loss of a model on each domain, default all (options and errors as `scoring.losses_of`)."""
        windows = self.windows if windows is None else windows
        return losses_of(model, windows, self.settings, self.progress, losses=self.losses, **options)


@contextmanager
def dense_model(
    name: str, members: Sequence[Member], settings: TestSettings, progress: Progress = silent, work: Path | None = None
) -> Iterator[Model]:
    """Open the averaged weights of members, or a single one; its folder, below `work`, is deleted afterwards."""
    with temporary_folder(work) as temporary:
        write_dense(members, temporary / name, progress)
        yield open_model(name, temporary / name, settings)


def make_benchmark(
    sources: Sequence[TokenizerSource],
    data: Mapping[str, Sequence[Path]],
    registered: Sequence[Member],
    settings: TestSettings,
    progress: Progress,
) -> Benchmark:
    """Make the benchmark of some models (IncompatibleError: a tokenizer contradicts the first; others: `text_windows`).

    Args:
        sources: the models to score; the first one's tokenizer makes the windows, and no other may contradict it.
        data: domain → test files.
        registered: active base models, and experts named like a domain; those of another tokenizer take no part.
    """
    first = sources[0]
    digest = tokenizer_digest(first.files)
    for source in sources[1:]:
        if difference := conflict(first.files, source.files):
            raise IncompatibleError(
                f"{first.label} and {source.label} cannot stand in one table: their tokenizers differ: {difference}",
                "evaluate each with its own command",
            )
    reasons = {
        member.version.ref: f"{member.version.ref} has another tokenizer than {first.name}: {difference}"
        for member in registered
        if member.content["tokenizer"] != digest and (difference := conflict(first.files, member.files()))
    }
    comparable = [member for member in registered if member.version.ref not in reasons]
    limits = {source.name: source.limit for source in sources if source.limit is not None}
    limits |= {member.version.ref: member.architecture.max_position_embeddings for member in comparable}
    shortest = min(limits, key=lambda name: limits[name], default=None)
    if shortest is not None and settings.seq_len > limits[shortest]:
        longest = limits[shortest]
        remark(progress, f"windows have {longest:,} tokens, not {settings.seq_len:,}: {shortest} takes no more")
        settings = replace(settings, seq_len=longest)
    with temporary_folder() as temporary:
        if first.folder is None:
            write_files(temporary, first.files)
        windows = text_windows(data, first.folder or temporary, settings)
    counts = {domain: len(text.ids) for domain, text in windows.items()}
    if short := [f"{domain} has {count}" for domain, count in counts.items() if count < settings.windows]:
        remark(progress, f"domains of fewer than {settings.windows} windows are scored on all their text: {few(short)}")
    largest = max(int(calibration.ids.max()) for calibration in windows.values())
    for member in comparable:
        if largest >= member.architecture.vocab_size:
            reasons[member.version.ref] = f"{member.version.ref} does not know token {largest} of the text"
    comparable = [member for member in comparable if member.version.ref not in reasons]
    own = {  # the composed version, else the newest
        member.version.name: member
        for member in comparable
        if member.version.kind == "expert"
        and first.composed.get(member.version.name, member.version.digest) == member.version.digest
    }
    experts = {domain: own[domain] for domain in data if domain in own}
    for domain in data:
        if domain not in experts:
            reason = _missing(domain, registered, first.composed.get(domain), reasons, first.name)
            remark(progress, f"no normalised score for {domain}: {reason}")
    refused = [
        reasons[member.version.ref]
        for member in registered
        if member.version.kind == "base" and member.version.ref in reasons
    ]
    bases = tuple(member for member in comparable if member.version.kind == "base")
    settings = _with_dtype(settings, sources, comparable, progress)
    return Benchmark(windows, experts, bases, "; ".join(refused) or "none is registered", settings, progress)


def _with_dtype(
    settings: TestSettings, sources: Sequence[TokenizerSource], members: Sequence[Member], progress: Progress
) -> TestSettings:
    """Return `settings` with the dtype that all rows are computed in, in place of `auto`."""
    if settings.dtype != AUTO:
        return settings
    dtypes = {str(member.content["dtype"]) for member in members}
    dtypes |= {source.dtype for source in sources if source.dtype is not None}
    dtypes |= {stored_dtype(source.folder) for source in sources if source.folder is not None}
    own = dtypes.pop() if len(dtypes) == 1 else "float32"
    report_dtype(AUTO, own, settings.device, progress)
    return replace(settings, dtype=compute_dtype(AUTO, own, settings.device))


def _missing(
    domain: str, registered: Sequence[Member], composed: str | None, reasons: Mapping[str, str], first: str
) -> str:
    """Return the reason why `domain` has no expert to score against."""
    versions = [
        member.version for member in registered if member.version.name == domain and member.version.kind == "expert"
    ]
    if not versions:
        for base in (member.version for member in registered if member.version.kind == "base"):
            if domain == base.name or composed == base.digest:
                what = "a base model" if domain == base.name else f"a copy of the base model {base.ref}"
                return f"it is {what}; a domain has the name of the expert whose text it is"
        known = {member.version.name for member in registered if member.version.kind == "expert"}
        return f"no expert of that name is registered{suggest(domain, sorted(known))}"
    if composed is None:
        return reasons[versions[-1].ref]
    used = next((version for version in versions if version.digest == composed), None)
    if used is None:
        return f"the version that {first} was composed of ({composed[:12]}) is not an active one here"
    return reasons[used.ref]


def text_windows(
    data: Mapping[str, Sequence[Path]], tokenizer_folder: Path, settings: TestSettings
) -> dict[str, Calibration]:
    """Return each domain's windows (CalibrationError: no text, or a single token; CheckpointError: no tokenizer)."""
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
