"""Scores of a model on a cluster: each task scores one domain, batch by batch in the order of one process.

A domain is not divided further: its loss is a sum of floats, whose last bits depend on the order.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from registry.calibration import Calibration
from registry.distributed import Cluster, Step, Task
from registry.distributed.step import mixed_kinds
from registry.evaluation.results import DomainLoss, TestSettings
from registry.evaluation.scoring import Model, Tally, loss_of, open_model
from registry.progress import Progress
from registry.runtime.gates import experts_per_token

_opened: dict[tuple[Path, TestSettings, tuple[tuple[str, int, int], ...]], Model] = {}
"""The model that this process loaded last: its next task mostly needs the same."""


Shared = tuple[str, Path, TestSettings, int | None]
"""What all tasks of a model have in common: its name and folder, the settings, and the experts of a token."""


@dataclass(frozen=True)
class DomainTasks:
    """Computes losses by tasks of a cluster, in place of this process (`scoring.Losses`)."""

    cluster: Cluster
    work: Path  # a folder that all nodes see, for the progress of tasks
    kinds: dict[str, str] = field(default_factory=dict)  # kind of node → a node of that kind that scored a domain

    def __call__(
        self,
        model: Model,
        windows: Mapping[str, Calibration],
        settings: TestSettings,
        progress: Progress,
        tally: Tally | None,
        expert_of: Mapping[str, int],
    ) -> dict[str, DomainLoss]:
        """Return domain → loss, and fill the tally (CheckpointError: no model; ClusterError: nodes of two kinds)."""
        settings = replace(settings, device=self.cluster.device(settings.device))
        shared = model.name, model.folder.absolute(), settings, model.experts_per_token
        shape = None if tally is None else tally.shape
        tasks = [
            Task(f"on {domain}", (domain, text, expert_of.get(domain), shape), len(text.ids))
            for domain, text in windows.items()
        ]
        label = f"evaluating {model.name}"
        step = Step(label, "window", score_in_task, shared, tasks, self.work, str(settings.device))
        losses = {}
        for finished in self.cluster.results(step, progress):
            self.kinds.setdefault(finished.kind, finished.node)
            losses[str(finished.task.arguments[0])], counted = finished.result
            if tally is not None:
                tally.include(counted)
        if len(self.kinds) > 1:
            raise mixed_kinds(self.kinds, "whose figures may differ in their last digits")
        return losses


def score_in_task(
    shared: Shared,
    domain: str,
    text: Calibration,
    expert: int | None,
    shape: tuple[int, int] | None,
    *,
    progress: Progress,
) -> tuple[DomainLoss, Tally | None]:
    """Score one domain in a task, and return the loss and the experts that tokens went to."""
    name, folder, settings, active = shared
    states = ((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.iterdir()))
    key = folder, settings, tuple(states)
    if key not in _opened:
        _opened.clear()
        _opened[key] = open_model(name, folder, settings)
    model = _opened[key]
    tally = None if shape is None else Tally(*shape)
    with (
        nullcontext() if active in (None, model.experts_per_token) else experts_per_token(model.loaded, active),
        progress(f"evaluating {name}", len(text.ids), "window") as advance,
    ):
        return loss_of(model, domain, text, settings.batch_size, tally, expert, advance), tally
