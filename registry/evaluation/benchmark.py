"""What all rows of a table are measured by: the same windows, and each domain's own expert."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from registry.calibration import Calibration
from registry.checkpoint import read_files, tokenizer_digest
from registry.checkpoint.model_files import read_config
from registry.composition.dense import write_dense
from registry.composition.plan import Plan
from registry.errors import IncompatibleError
from registry.evaluation.results import TestSettings
from registry.evaluation.scoring import Model, open_model
from registry.evaluation.text import conflict, predicted, shortened, test_windows
from registry.io.model_folder import composed_of, write_files
from registry.io.work_dirs import temporary_folder
from registry.member import Member
from registry.progress import Progress, remark


@dataclass(frozen=True)
class TokenizerSource:
    """What decides how a model's text is made into tokens.

    Attributes:
        label: what messages call it.
        name: what tables call it.
        files: its tokenizer's files and config.json, by name.
        limit: the longest window it takes, or None where it does not say.
        composed: member name → content digest, of a composition.
        folder: where the files are, if they are in a folder.
    """

    label: str
    name: str
    files: Mapping[str, bytes]
    limit: int | None
    composed: Mapping[str, str]
    folder: Path | None = None

    @classmethod
    def of_folder(cls, folder: Path, name: str) -> "TokenizerSource":
        """Return that of a model folder."""
        limit = read_config(folder).get("max_position_embeddings")
        taken = limit if isinstance(limit, int) and limit > 1 else None
        return cls(str(folder), name, read_files(folder), taken, composed_of(folder), folder)

    @classmethod
    def of_plan(cls, plan: Plan) -> "TokenizerSource":
        """Return that of compositions of the members that `plan` has."""
        label = f"the composition of {', '.join(plan.names)}"
        files = {name: plan.lead.file(name) for name in plan.lead.names("file")}
        composed = {member.name: member.version.digest for member in plan.members}
        return cls(label, label, files, plan.translation.architecture.max_position_embeddings, composed)


@dataclass(frozen=True)
class Benchmark:
    """The windows, and the registered models that stand beside those to be scored.

    Attributes:
        windows: domain → test text.
        experts: domain → its own expert, where one is registered.
        bases: base models.
        no_base: why there is none.
        settings: how the text is scored, windows no longer than every model can take.
        progress: told of windows scored, and in remarks of every figure that there cannot be.
    """

    windows: Mapping[str, Calibration]
    experts: Mapping[str, Member]
    bases: tuple[Member, ...]
    no_base: str
    settings: TestSettings
    progress: Progress

    @property
    def tokens(self) -> dict[str, int]:
        """Domain → predicted tokens."""
        return {domain: predicted(windows) for domain, windows in self.windows.items()}

    def dense(self, name: str, members: Sequence[Member]) -> Model:
        """Return the plain average of `members`, of one member itself."""
        with temporary_folder() as temporary:
            folder = temporary / name
            write_dense(members, folder, self.progress)
            return open_model(name, folder, self.settings)


def make_benchmark(
    sources: Sequence[TokenizerSource],
    data: Mapping[str, Sequence[Path]],
    registered: Sequence[Member],
    settings: TestSettings,
    progress: Progress,
) -> Benchmark:
    """Return what models are measured by.

    Args:
        sources: the models to be scored; the first one's tokenizer makes the windows, and no other may contradict it.
        data: domain → test files.
        registered: active base models, and experts named like a domain; those of another tokenizer take no part.
        settings: how test text is scored.
        progress: told in remarks of every domain without its own expert.

    Raises:
        IncompatibleError: a tokenizer contradicts the first one's.
        CalibrationError: a file cannot be read, or holds no text or a single token.
        CheckpointError: the first has no tokenizer.
    """
    first = sources[0]
    digest = tokenizer_digest(first.files)
    for source in sources[1:]:
        if found := conflict(first.files, source.files):
            raise IncompatibleError(
                f"{first.label} and {source.label} cannot stand in one table: their tokenizers differ: {found}",
                "evaluate each with a command of its own",
            )
    reasons = {
        member.version.ref: f"{member.version.ref} has another tokenizer than {first.name}: {found}"
        for member in registered
        if member.content["tokenizer"] != digest
        and (found := conflict(first.files, {name: member.file(name) for name in member.names("file")}))
    }
    comparable = [member for member in registered if member.version.ref not in reasons]
    limits = {source.name: source.limit for source in sources if source.limit is not None}
    limits |= {member.version.ref: member.architecture.max_position_embeddings for member in comparable}
    settings = shortened(settings, limits, progress)
    with temporary_folder() as temporary:
        if first.folder is None:
            write_files(temporary, first.files)
        windows = test_windows(data, first.folder or temporary, settings)
    largest = max(int(w.ids.max()) for w in windows.values())
    for member in comparable:
        if largest >= member.architecture.vocab_size:
            reasons[member.version.ref] = f"{member.version.ref} does not know token {largest} of the text"
    comparable = [member for member in comparable if member.version.ref not in reasons]
    experts = _own_experts(comparable, list(data), first.composed)
    for domain in data:
        if domain not in experts:
            why = _missing(domain, registered, first.composed.get(domain), reasons, first.name)
            remark(progress, f"no normalised score for {domain}: {why}")
    refused = [reasons[m.version.ref] for m in registered if m.version.kind == "base" and m.version.ref in reasons]
    bases = tuple(member for member in comparable if member.version.kind == "base")
    return Benchmark(windows, experts, bases, "; ".join(refused) or "none is registered", settings, progress)


def _own_experts(members: Sequence[Member], domains: Sequence[str], composed: Mapping[str, str]) -> dict[str, Member]:
    """Return domain → the expert of its name: the version that was composed, else the newest."""
    experts = {}
    for member in members:
        version = member.version
        if version.kind == "expert" and composed.get(version.name, version.digest) == version.digest:
            experts[version.name] = member
    return {domain: experts[domain] for domain in domains if domain in experts}


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
