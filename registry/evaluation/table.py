"""Evaluation table: perplexity by domain, and the normalised score of the DUME paper, one row a model."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from registry.errors import InvalidInputError
from registry.evaluation.benchmark import Benchmark
from registry.evaluation.intervals import ahead_of, score_intervals
from registry.evaluation.methods import METHODS, Compose, named_methods
from registry.evaluation.record import store_figures
from registry.evaluation.results import DomainLoss, Row, over_seeds, stored_losses
from registry.evaluation.scoring import Model, Tally, relative_time
from registry.io.display import few
from registry.io.model_folder import composed_of
from registry.io.work_dirs import temporary_folder
from registry.member import Member
from registry.progress import remark
from registry.runtime.gates import experts_per_token
from store.catalog import Catalog
from store.digest import json_digest


@dataclass(frozen=True)
class Wanted:
    """Selection of a table's rows and figures.

    Attributes:
        methods: names of `methods.DENSE` and `methods.METHODS`, or `all`, which skips methods that do not fit the
            experts, with a remark.
        active_experts: add a row for every folder and each of these numbers of experts per token; or `all`.
    """

    baselines: bool = False  # add rows for base models, experts and the experts' average
    oracle: bool = False  # add a row for every mixture with each domain's tokens sent to the domain's expert
    speed: bool = False  # measure the time of a token in every mixture, relative to a dense expert's
    methods: tuple[str, ...] = ()
    seeds: int | None = None  # number of seeds of methods with randomness, 1 or more; None for each method's own
    active_experts: tuple[int, ...] | Literal["all"] = ()

    def has(self, dense: str) -> bool:
        """Tell whether a row without a composition is selected."""
        return self.baselines or dense in named_methods(self.methods)


@dataclass
class Table:
    """The rows of one table, which share a benchmark; those of a composition are stored with it in the catalog."""

    benchmark: Benchmark
    wanted: Wanted
    catalog: Catalog
    _own: dict[str, DomainLoss] = field(default_factory=dict)
    _average: Row | None = None
    _single: tuple[Row, ...] = ()

    def dense_rows(self) -> list[Row]:
        """Return the selected rows for base models, experts and their average, and measure the experts."""
        measured: list[tuple[Row, dict[str, DomainLoss]]] = []

        def measure(name: str, label: str, members: Sequence[Member]) -> dict[str, DomainLoss]:
            with self.benchmark.dense(label, members) as model:
                losses = self.benchmark.losses_of(model)
                measured.append((self._row(name, losses, model), losses))
            return losses

        if self.wanted.has("base"):
            if not self.benchmark.bases:
                self._remark(f"no row for a base model: {self.benchmark.no_base}")
            for member in self.benchmark.bases:
                measure(f"base {member.version.ref}", member.version.ref, [member])
        for domain, member in self.benchmark.experts.items():
            if self.wanted.has("experts"):
                self._own[domain] = measure(f"expert {domain}", member.version.ref, [member])[domain]
            else:
                with self.benchmark.dense(member.version.ref, [member]) as model:
                    self._own |= self.benchmark.losses_of(model, {domain: self.benchmark.windows[domain]})
        members = [self.benchmark.experts[name] for name in sorted(self.benchmark.experts)]
        if self.wanted.has("average"):
            if len(members) < 2:
                given = "there is none" if not members else f"there is one, {members[0].name}"
                self._remark(f"no row for averaged weights: they take experts of two domains, and {given}")
            elif any(member.architecture != members[0].architecture for member in members):
                self._remark("no row for averaged weights: the experts' architectures differ")
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
        model = self.benchmark.open(name, folder)
        if oracle:
            return [row] if (row := self._oracle_row(name, model)) else []
        members = composed_of(folder)
        row = self._routed_row(model, members)
        upper = self._oracle_row(f"{name} oracle", model) if self.wanted.oracle else None
        curve = [self._active_row(f"{name} top-{count}", model, row, count) for count in active]
        scored = {domain: member.version.digest for domain, member in self.benchmark.experts.items()}
        average = self._average if members == scored else None
        if average is not None:
            row = replace(row, ahead_of_average=ahead_of(row, average))
        if self._average is not None and average is None and members:
            of = f"averaged weights are those of {few(sorted(scored))}"
            self._remark(f"{of}, and {name} has other experts: their row is not stored with it")
        self._record(folder, row, upper, curve, average)
        return [row, *([upper] if upper else []), *curve]

    def method_rows(self, name: str, compose: Compose) -> list[Row]:
        """Return the rows of a method, as means over its seeds; each composition is deleted once it is scored."""
        method = METHODS[name]
        runs: list[list[Row]] = []
        for settings in method.runs(self.wanted.seeds):
            with temporary_folder(self.benchmark.work) as temporary:
                folder = temporary / name
                try:
                    compose(settings, folder)
                except InvalidInputError as error:
                    if "all" not in self.wanted.methods:
                        raise
                    self._remark(f"no row for {name}: {error.message}")
                    return []
                runs.append(self.folder_rows(name, folder, oracle=method.oracle))
        return [over_seeds(rows) for rows in zip(*runs, strict=True)]

    def _routed_row(self, model: Model, composed: Mapping[str, str]) -> Row:
        if not model.layers:
            return self._row(model.name, self.benchmark.losses_of(model), model)
        tally = Tally(model.layers, model.experts)
        losses = self.benchmark.losses_of(model, tally=tally)
        time = self._relative_time(model, composed) if self.wanted.speed and model.routers else None
        return self._row(model.name, losses, model, relative_time=time, **tally.figures(model.expert_names))

    def _active_row(self, name: str, model: Model, row: Row, count: int) -> Row:
        """Return the row of a mixture whose tokens go to `count` experts each (FlexOlmo, Fig. 3)."""
        if count == row.experts_per_token:
            return replace(
                row, name=name, accuracy={}, load={}, routing={}, weights={}, accuracy_by_tokens={}, relative_time=None
            )  # as the other rows, which have scores and costs alone
        with experts_per_token(model.loaded, count):
            named = replace(model, name=name)
            return self._row(name, self.benchmark.losses_of(named), named)

    def _oracle_row(self, name: str, model: Model) -> Row | None:
        experts = model.expert_names
        known = {domain: windows for domain, windows in self.benchmark.windows.items() if domain in experts}
        if not model.routers or not known:
            reason = "no domain is a member of it" if model.routers else "it is not a mixture"
            self._remark(f"no row with perfect routing for {model.name}: {reason}")
            return None
        if missing := [domain for domain in self.benchmark.windows if domain not in known]:
            self._remark(f"no perfect routing of {', '.join(missing)} in {model.name}: not among its members")
        numbers = {domain: experts.index(domain) for domain in known}
        named = replace(model, name=f"{model.name} with perfect routing")  # its progress is a step of its own
        return self._row(name, self.benchmark.losses_of(named, known, expert_of=numbers), model)

    def _relative_time(self, model: Model, composed: Mapping[str, str]) -> float | None:
        members = [
            expert for expert in self.benchmark.experts.values() if composed.get(expert.name) == expert.version.digest
        ]
        if not members:
            self._remark(f"no relative time for {model.name}: none of its experts is registered for a domain")
            return None
        windows = next(iter(self.benchmark.windows.values()))
        with self.benchmark.dense(members[0].version.ref, members[:1]) as dense:
            return relative_time(model, dense, windows, self.benchmark.settings.batch_size)

    def _record(self, folder: Path, row: Row, oracle: Row | None, curve: Sequence[Row], average: Row | None) -> None:
        """Store the row of a folder if it is an unchanged composition made here, with the rows to compare it with."""
        windows, experts = self.benchmark.windows, self.benchmark.experts
        inputs: dict[str, Any] = {
            "data": {domain: text.digest for domain, text in windows.items()},
            "settings": asdict(self.benchmark.settings),
        }
        if curve:  # a later evaluation without them leaves these where they are
            inputs["active_experts"] = [one.experts_per_token for one in curve]
        scored = {one.name for one in self._single}
        bases = [member.version for member in self.benchmark.bases if f"base {member.version.ref}" in scored]
        tokens = self.benchmark.tokens
        document = {
            "data": {
                domain: {"digest": text.digest, "label": text.label, "tokens": tokens[domain]}
                for domain, text in windows.items()
            },
            "experts": {domain: member.version.digest for domain, member in experts.items()},
            "settings": inputs["settings"],
            "figures": row.document(),
            "losses": stored_losses(row.losses),
            "oracle": None if oracle is None else oracle.document(),
            **({"active_experts": [one.document() for one in curve]} if curve else {}),
            **({"plain_average": average.document()} if average else {}),
            **({"single_models": [one.document() for one in self._single]} if self._single else {}),
            **({"bases": {version.ref: version.digest for version in bases}} if bases else {}),
        }
        asked = json_digest(inputs)
        store_figures(self.catalog, folder, asked, document, self.benchmark.progress, name=row.name)

    def _remark(self, text: str) -> None:
        remark(self.benchmark.progress, text)

    def _scored(self, row: Row, losses: Mapping[str, DomainLoss]) -> Row:
        """Return a row with its scores and their intervals."""
        own = {domain: loss for domain, loss in self._own.items() if domain in losses}
        known = {**losses, **{domain: replace(losses[domain], own=loss.nats) for domain, loss in own.items()}}
        score = {domain: 100 * (loss.perplexity / row.perplexity[domain]) for domain, loss in own.items()}
        interval, average = score_intervals(known)
        row = replace(row, score=score, interval=interval, losses=known)
        return replace(row, average_interval=average if row.average is not None else None)

    def _row(self, name: str, losses: Mapping[str, DomainLoss], model: Model, **routing: Any) -> Row:
        row = Row(
            name,
            {domain: loss.perplexity for domain, loss in losses.items()},
            {},
            self.benchmark.tokens,
            parameters=model.parameters,
            active_parameters=model.active_parameters,
            experts_per_token=model.experts_per_token,
            **routing,
        )
        return self._scored(row, losses)
