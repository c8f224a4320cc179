"""Registration of many experts: all are checked before the first is registered, then each is a task or a turn.

Each expert is registered by `register_checkpoint`, in this process or in one of a cluster. An expert that cannot be
registered after all names itself, and the others are registered; a repeat skips those that are.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from registry.distributed import Cluster, Step, Task
from registry.errors import ClusterError, IncompatibleError, RegError
from registry.home import Home
from registry.io.work_dirs import temporary
from registry.progress import Progress, remark
from registry.registration.candidate import Candidate, RegistrationRequest, open_candidate
from registry.registration.lineage import WeightSamples, check_related, relation
from registry.registration.register import Registration, register_checkpoint
from registry.statistics.settings import PassSettings, on_cluster
from registry.workspace import Workspace


@dataclass(frozen=True)
class RegisteredList:
    """Results of registering many experts, by name in the order of the list."""

    registered: dict[str, Registration] = field(default_factory=dict)
    failed: dict[str, RegError] = field(default_factory=dict)


def register_experts(workspace: Workspace, requests: Sequence[RegistrationRequest]) -> RegisteredList:
    """Register experts, one after another or as tasks of the registry's cluster.

    (CheckpointError, CalibrationError, IncompatibleError, ConflictError: one cannot be registered; raised before the
    first is; ClusterError: the nodes of the cluster cannot do the work.)
    """
    _check_all(workspace, requests)
    # The check has compared all with each other and with the registered: in any order the same ones pass.
    requests = [replace(request, allow_unrelated=True) for request in requests]
    if workspace.cluster is not None:
        return _on_cluster(workspace, workspace.cluster, requests)
    result = RegisteredList()
    with workspace.progress("registering", len(requests), "expert") as advance:
        for request in requests:
            name = str(request.name)
            try:
                result.registered[name] = register_checkpoint(workspace, request)
            except RegError as error:
                result.failed[name] = error
                remark(workspace.progress, f"{name} is not registered: {error.message}")
            advance(1)
    return result


def _check_all(workspace: Workspace, requests: Sequence[RegistrationRequest]) -> None:
    """Open every checkpoint, and compare it with the registered ones and with those before it in the list."""
    kept: list[tuple[str, WeightSamples]] = []
    with workspace.progress("checking", len(requests), "expert") as advance:
        for request in requests:
            try:
                with open_candidate(workspace, request) as candidate:
                    _compare(candidate, kept)
            except RegError as error:
                raise type(error)(f"{request.name}: {error.message}", error.hint) from error
            advance(1)


def _compare(candidate: Candidate, kept: list[tuple[str, WeightSamples]]) -> None:
    """Raise IncompatibleError if none of a candidate's shape is registered, and it is related to no earlier one.

    `kept` has name and samples of earlier ones; of those that are related to each other, one.
    """
    if candidate.relations:
        return
    samples = replace(candidate.samples, stored=candidate.samples.own)
    others = [(name, other) for name, other in kept if dict(other.shapes) == dict(samples.shapes)]
    found = [relation(samples, name, "expert", other) for name, other in others]
    relations = [one for one in found if one is not None]
    if any(one.verdict != "unrelated" for one in relations):
        return
    if not candidate.request.allow_unrelated:
        try:
            check_related(candidate.checkpoint.label, relations)
        except IncompatibleError as error:
            raise IncompatibleError(
                error.message.replace("every registered model", "every model before it in the list"), error.hint
            ) from error
    kept.append((str(candidate.request.name), samples))


def _on_cluster(workspace: Workspace, cluster: Cluster, requests: Sequence[RegistrationRequest]) -> RegisteredList:
    here = socket.gethostname()
    home = workspace.home
    if home.database.startswith("sqlite") and (others := sorted(cluster.machines - {here})):
        raise ClusterError(
            f"the catalog is an SQLite file, which {others[0]} and {here} cannot write at once",
            "put the catalog into PostgreSQL: --database postgresql://…; or leave out --ray",
        )
    requests = [replace(one, settings=on_cluster(one.settings or PassSettings(), cluster)) for one in requests]
    done: dict[str, Registration | RegError] = {}
    with temporary(home.work) as folder:
        tasks = [Task(str(request.name), (request,), 1) for request in requests]
        device = cluster.device(requests[0].settings.device if requests[0].settings else None)
        step = Step("registering", "expert", register_in_task, home, tasks, folder, device)
        for finished in cluster.run(step, workspace.progress):
            if finished.error is not None and not isinstance(finished.error, RegError):
                raise finished.error
            done[finished.task.name] = finished.error or finished.result
            if finished.error is not None:
                remark(workspace.progress, f"{finished.task.name} is not registered: {finished.error.message}")
    outcomes = {str(request.name): done[str(request.name)] for request in requests}
    return RegisteredList(
        {name: found for name, found in outcomes.items() if not isinstance(found, RegError)},
        {name: found for name, found in outcomes.items() if isinstance(found, RegError)},
    )


def register_in_task(home: Home, request: RegistrationRequest, *, progress: Progress) -> Registration:
    """Register one expert in a task."""
    workspace = Workspace.open(home, progress, create="when written to")
    try:
        return register_checkpoint(workspace, request)
    finally:
        workspace.close()
