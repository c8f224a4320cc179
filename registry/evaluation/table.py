"""Evaluation table: perplexity by domain, and the normalised score of the DUME paper, one row a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from registry.errors import InvalidInputError
from registry.evaluation.benchmark import Benchmark, TokenizerSource, make_benchmark
from registry.evaluation.domain_tasks import DomainTasks
from registry.evaluation.intervals import ahead_of, score_intervals
from registry.evaluation.methods import DENSE, METHODS, Compose, named_methods
from registry.evaluation.model_folders import active_experts_of
from registry.evaluation.results import Row, TestSettings, over_seeds
from registry.evaluation.scoring import Model, Tally, relative_time
from registry.evaluation.window_losses import DomainLoss, PairedLoss
from registry.io.display import few
from registry.io.model_folder import composed_of
from registry.io.work_dirs import temporary_folder
from registry.member import Member
from registry.progress import Progress, remark
from registry.runtime.gates import experts_per_token


@dataclass(frozen=True)
class Wanted:
    """Selection of a table's rows and figures, and of where they are computed.

    Attributes:
        baselines: add rows for base models, experts and the experts' average.
        oracle: add a row for every mixture with each domain's tokens sent to the domain's expert.
        speed: measure the time of a token in every mixture, relative to a dense expert's.
        methods: names of `methods.DENSE` and `methods.METHODS`, or `all`, which skips methods that do not fit the
            experts, with a remark.
        seeds: number of seeds of methods with randomness, 1 or more; None for each method's own.
        active_experts: add a row for every folder and each of these numbers of experts per token; or `all`.
        tasks: scores models on a cluster; None to score them in this process.
    """

    baselines: bool = False
    oracle: bool = False
    speed: bool = False
    methods: tuple[str, ...] = ()
    seeds: int | None = None
    active_experts: tuple[int, ...] | Literal["all"] = ()
    tasks: DomainTasks | None = None

    def has(self, dense: str) -> bool:
        """Tell whether a row without a composition is selected."""
        return self.baselines or dense in named_methods(self.methods)


@dataclass(frozen=True)
class FolderRows:
    """The rows of one folder.

    Attributes:
        row: as it is.
        oracle: every token of a domain sent to the domain's expert; None if that was not asked for or cannot be.
        active_experts: with other numbers of experts per token, ascending.
        average: the members' averaged weights; None if it was not scored, or is that of other experts.
        single: the base models and experts that were scored.
    """

    row: Row
    oracle: Row | None = None
    active_experts: tuple[Row, ...] = ()
    average: Row | None = None
    single: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Composed:
    """Sources of the rows that have no folder.

    Attributes:
        tokenizer: of their compositions.
        methods: composes by the settings of a method.
        sweep: row → what composes it, for the rows of a sweep.
    """

    tokenizer: TokenizerSource
    methods: Compose
    sweep: Mapping[str, Compose] = field(default_factory=dict)


Recorder = Callable[[str, Path, Benchmark, FolderRows], None]
"""Called with each folder while it exists: (name, folder, benchmark, its rows)."""


def discard(name: str, folder: Path, benchmark: Benchmark, rows: FolderRows) -> None:
    """Record nothing."""


def evaluate(
    folders: Sequence[Path],
    data: Mapping[str, Sequence[Path]],
    registered: Sequence[Member],
    settings: TestSettings,
    *,
    progress: Progress,
    wanted: Wanted | None = None,
    composed: Composed | None = None,
    keep: Recorder = discard,
) -> list[Row]:
    """Evaluate models, one row each (see `Registry.evaluate`).

    Args:
        folders: model folders; the first one's tokenizer makes the windows, and no other may contradict it.
        data: domain → test files.
        registered: active base models, and experts named like a domain; those of another tokenizer take no part.
        settings: the settings of scoring.
        progress: reports windows scored, and remarks on every figure that cannot be computed, with the reason.
        wanted: the rows and figures; by default the rows of the folders.
        composed: what composes the rows of methods and of a sweep; None without such rows.
        keep: called with each folder's rows.

    Raises:
        InvalidInputError: there is neither a folder nor a method, or no data; a method is unknown or does not fit; or a
            folder has fewer experts than are to be active.
        IncompatibleError: a folder's tokenizer contradicts the first one's.
        CalibrationError: a file cannot be read, or holds no text or a single token.
        CheckpointError: a folder has no tokenizer, does not load, a key is missing, unexpected or mismatched, or a loss
            is NaN or infinite.
    """
    wanted = wanted or Wanted()
    if not (folders or (composed and (wanted.methods or composed.sweep))) or not data:
        raise InvalidInputError("there is nothing to evaluate", "reg evaluate moe/ --data code=FILE")
    methods = named_methods(wanted.methods)
    counts = [active_experts_of(folder, wanted.active_experts) for folder in folders]
    names = [folder.name for folder in folders]
    labels = [path.name if path.name and names.count(path.name) == 1 else str(path) for path in folders]
    sources = [TokenizerSource.of_folder(folder, name) for folder, name in zip(folders, labels, strict=True)]
    sources += [composed.tokenizer] if composed else []
    benchmark = make_benchmark(sources, data, registered, settings, progress)
    if wanted.tasks is not None:
        benchmark = replace(benchmark, losses=wanted.tasks, work=wanted.tasks.work)
    table = _Table(benchmark, wanted, keep)
    rows = table.dense_rows()
    for name, folder, active in zip(labels, folders, counts, strict=True):
        rows += table.folder_rows(name, folder, active)
    if composed is not None:
        for name in methods:
            rows += [] if name in DENSE else table.method_rows(name, composed.methods)
        for name, compose in composed.sweep.items():
            rows += table.swept_rows(name, compose)
    return rows


class _Table:
    """The rows of one table, which share a benchmark."""

    def __init__(self, benchmark: Benchmark, wanted: Wanted, keep: Recorder) -> None:
        self._benchmark = benchmark
        self._wanted = wanted
        self._keep = keep
        self._progress = benchmark.progress
        self._own: dict[str, DomainLoss] = {}
        self._average: Row | None = None
        self._single: tuple[Row, ...] = ()

    def dense_rows(self) -> list[Row]:
        """Return the selected rows for base models, experts and their average, and measure the experts."""
        benchmark = self._benchmark
        measured: list[tuple[Row, dict[str, DomainLoss]]] = []

        def measure(name: str, label: str, members: Sequence[Member]) -> dict[str, DomainLoss]:
            with benchmark.dense(label, members) as model:
                losses = benchmark.losses_of(model)
                measured.append((self._row(name, losses, model), losses))
            return losses

        if self._wanted.has("base"):
            if not benchmark.bases:
                remark(self._progress, f"no row for a base model: {benchmark.no_base}")
            for member in benchmark.bases:
                measure(f"base {member.version.ref}", member.version.ref, [member])
        for domain, member in benchmark.experts.items():
            if self._wanted.has("experts"):
                self._own[domain] = measure(f"expert {domain}", member.version.ref, [member])[domain]
            else:
                with benchmark.dense(member.version.ref, [member]) as model:
                    self._own |= benchmark.losses_of(model, {domain: benchmark.windows[domain]})
        members = [benchmark.experts[name] for name in sorted(benchmark.experts)]
        if self._wanted.has("average"):
            if len(members) < 2:
                given = "there is none" if not members else f"there is one, {members[0].name}"
                remark(self._progress, f"no row for averaged weights: they take experts of two domains, and {given}")
            elif any(member.architecture != members[0].architecture for member in members):
                remark(self._progress, "no row for averaged weights: the experts' architectures differ")
            else:
                measure("average", "averaged weights", members)
        rows = [self._scored(row, losses) for row, losses in measured]  # all own losses are known now
        self._average = next((row for row in rows if row.name == "average"), None)
        self._single = tuple(row for row in rows if row is not self._average)
        return rows

    def folder_rows(self, name: str, folder: Path, active: Sequence[int] = (), *, oracle: bool = False) -> list[Row]:
        """Return the row of a folder, the oracle's row if it is selected, and one for each number of active experts.

        With `oracle` return the oracle's row alone.
        """
        model = self._benchmark.open(name, folder)
        experts = _expert_names(folder, model)
        if oracle:
            return [row] if (row := self._oracle_row(name, model, experts)) else []
        row = self._routed_row(model, experts, composed_of(folder))
        upper = self._oracle_row(f"{name} oracle", model, experts) if self._wanted.oracle else None
        curve = tuple(self._active_row(f"{name} top-{count}", model, row, count) for count in active)
        scored = {domain: member.version.digest for domain, member in self._benchmark.experts.items()}
        members = composed_of(folder)
        average = self._average if members == scored else None
        if average is not None:
            row = replace(row, ahead_of_average=ahead_of(row, average))
        if self._average is not None and average is None and members:
            of = f"averaged weights are those of {few(sorted(scored))}"
            remark(self._progress, f"{of}, and {name} has other experts: their row is not stored with it")
        self._keep(name, folder, self._benchmark, FolderRows(row, upper, curve, average, self._single))
        return [row, *([upper] if upper else []), *curve]

    def method_rows(self, name: str, compose: Compose) -> list[Row]:
        """Return the rows of a method, as means over its seeds; each composition is deleted once it is scored."""
        method = METHODS[name]
        runs: list[list[Row]] = []
        for settings in method.runs(self._wanted.seeds):
            with temporary_folder(self._benchmark.work) as temporary:
                folder = temporary / name
                try:
                    compose(settings, folder)
                except InvalidInputError as error:
                    if "all" not in self._wanted.methods:
                        raise
                    remark(self._progress, f"no row for {name}: {error.message}")
                    return []
                runs.append(self.folder_rows(name, folder, oracle=method.oracle))
        return [over_seeds(rows) for rows in zip(*runs, strict=True)]

    def swept_rows(self, name: str, compose: Compose) -> list[Row]:
        """Return the rows of one value of a sweep; its composition is deleted once it is scored."""
        with temporary_folder(self._benchmark.work) as temporary:
            folder = temporary / "swept"
            compose({}, folder)
            return self.folder_rows(name, folder)

    def _routed_row(self, model: Model, experts: Sequence[str], composed: Mapping[str, str]) -> Row:
        benchmark = self._benchmark
        if not model.layers:
            return self._row(model.name, benchmark.losses_of(model), model)
        tally = Tally(model.layers, len(experts))
        losses = benchmark.losses_of(model, tally=tally)
        time = self._relative_time(model, composed) if self._wanted.speed and model.routers else None
        row = self._row(model.name, losses, model, tally.accuracy(experts), tally.load(experts), time)
        return replace(
            row,
            routing=tally.routing(experts),
            weights=tally.weights(experts),
            accuracy_by_tokens=tally.accuracy_by_length(experts),
        )

    def _active_row(self, name: str, model: Model, row: Row, count: int) -> Row:
        """Return the row of a mixture whose tokens go to `count` experts each (FlexOlmo, Fig. 3)."""
        if count == row.experts_per_token:
            return replace(
                row, name=name, accuracy={}, load={}, routing={}, weights={}, accuracy_by_tokens={}, relative_time=None
            )  # as the other rows, which have scores and costs alone
        with experts_per_token(model.loaded, count):
            benchmark = self._benchmark
            named = replace(model, name=name)
            return self._row(name, benchmark.losses_of(named), named)

    def _oracle_row(self, name: str, model: Model, experts: Sequence[str]) -> Row | None:
        benchmark = self._benchmark
        known = {domain: windows for domain, windows in benchmark.windows.items() if domain in experts}
        if not model.routers or not known:
            reason = "no domain is a member of it" if model.routers else "it is not a mixture"
            remark(self._progress, f"no row with perfect routing for {model.name}: {reason}")
            return None
        if missing := [domain for domain in benchmark.windows if domain not in known]:
            remark(self._progress, f"no perfect routing of {', '.join(missing)} in {model.name}: not among its members")
        numbers = {domain: experts.index(domain) for domain in known}
        named = replace(model, name=f"{model.name} with perfect routing")  # its progress is a step of its own
        return self._row(name, benchmark.losses_of(named, known, expert_of=numbers), model)

    def _relative_time(self, model: Model, composed: Mapping[str, str]) -> float | None:
        benchmark = self._benchmark
        members = [
            expert for expert in benchmark.experts.values() if composed.get(expert.name) == expert.version.digest
        ]
        if not members:
            remark(self._progress, f"no relative time for {model.name}: none of its experts is registered for a domain")
            return None
        windows = next(iter(benchmark.windows.values()))
        with benchmark.dense(members[0].version.ref, members[:1]) as dense:
            return relative_time(model, dense, windows, benchmark.settings.batch_size)

    def _scored(self, row: Row, losses: Mapping[str, DomainLoss]) -> Row:
        """Return a row with its scores and their intervals."""
        own = {domain: loss for domain, loss in self._own.items() if domain in losses}
        intervals = score_intervals(own, losses)
        score = {domain: 100 * (loss.perplexity / row.perplexity[domain]) for domain, loss in own.items()}
        known = {domain: PairedLoss(loss, own.get(domain)) for domain, loss in losses.items()}
        row = replace(row, score=score, interval=intervals.score, losses=known)
        return replace(row, average_interval=intervals.average if row.average is not None else None)

    def _row(
        self,
        name: str,
        losses: Mapping[str, DomainLoss],
        model: Model,
        accuracy: dict[str, list[float]] | None = None,
        load: dict[str, list[float]] | None = None,
        time: float | None = None,
    ) -> Row:
        row = Row(
            name,
            {domain: loss.perplexity for domain, loss in losses.items()},
            {},
            self._benchmark.tokens,
            accuracy or {},
            load or {},
            model.parameters,
            model.active_parameters,
            time,
            experts_per_token=model.experts_per_token,
        )
        return self._scored(row, losses)


def _expert_names(folder: Path, model: Model) -> list[str]:
    """Return the names of the experts: the members in order, or numbers if the folder records no members."""
    names = list(composed_of(folder))
    return names if len(names) == model.experts else [str(number) for number in range(model.experts)]
