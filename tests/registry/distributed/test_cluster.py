"""Proves: statistics, compositions, evaluations and lists of experts are the same on a Ray cluster as in one process.

With 1, 2 and 3 nodes, with a process that is killed, and with a node that is removed in the middle. An interrupt
cancels tasks, and the next run goes on; errors of tasks are this program's own.
"""

import json
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from cli.main import main
from registry import PassSettings, Recipe, Registry, TestSettings
from registry.distributed import Cluster, Step, Task, connect
from registry.distributed.cluster import QUIET
from registry.errors import CalibrationError, CheckpointError, ClusterError, InvalidInputError
from registry.io import model_folder
from registry.progress import Advance, silent
from registry.statistics import slices
from registry.statistics.collect import collect_to
from registry.statistics.file import FILE_NAME
from tests.conftest import SETTINGS, Zoo, copy_home, files_of
from tests.registry.distributed import faults

pytestmark = [pytest.mark.check, pytest.mark.sqlite]
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


class Nodes:
    """A cluster on this machine: a head that runs no task, and nodes of one processor each."""

    def __init__(self) -> None:
        os.environ.update(QUIET)  # which `connect` sets, before Ray is imported
        import ray
        from ray.cluster_utils import Cluster as RayCluster

        head: dict[str, Any] = {**NODE, "num_cpus": 0, "include_dashboard": False}
        head["_system_config"] = {"health_check_period_ms": 500, "health_check_timeout_ms": 3000}
        self._cluster: Any = RayCluster(initialize_head=True, head_node_args=head)
        self._ray: Any = ray
        self._nodes: list[Any] = []
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level=logging.ERROR)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def use(self, count: int) -> None:
        """Start nodes, or remove some, until there are `count`."""
        while len(self._nodes) < count:
            self.add()
        while len(self._nodes) > count:
            self._cluster.remove_node(self._nodes.pop(), allow_graceful=True)
        self._cluster.wait_for_nodes()

    def add(self, **settings: Any) -> Any:
        self._nodes.append(self._cluster.add_node(**NODE, **settings))
        return self._nodes[-1]

    def remove(self, node_id: str) -> None:
        """Kill the processes of a node."""
        node = next(node for node in self._nodes if node.node_id == node_id)
        self._nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self._ray.shutdown()
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    started = Nodes()
    yield started
    started.close()


@pytest.fixture
def two(nodes: Nodes) -> Iterator[Cluster]:
    nodes.use(2)
    with connect(nodes.address) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def alone(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of statistics of one pass in this process."""
    return statistics(zoo, tmp_path_factory.mktemp("alone"), None)


def statistics(zoo: Zoo, out: Path, cluster: Cluster | None, progress: Any = silent) -> bytes:
    data = [zoo.train["code"]]
    path, _ = collect_to(zoo.experts["code"], out, data=data, settings=SETTINGS, cluster=cluster, progress=progress)
    assert [entry.name for entry in out.iterdir() if not entry.name.startswith(faults.MARKER)] == [FILE_NAME]
    return path.read_bytes()


class Seen:
    """Progress that is kept: sentences, and what was done of steps."""

    def __init__(self) -> None:
        self.remarks, self.done = list[str](), Counter[str]()
        self.totals: dict[str, int] = {}

    @contextmanager
    def __call__(self, label: str, total: int, unit: str) -> Iterator[Advance]:
        if not unit:
            self.remarks.append(label)
        self.totals[label] = total
        yield lambda amount: self.done.update({label: amount})


@pytest.mark.trust
def test_nodes_of_two_kinds_are_refused(
    zoo: Zoo, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.use(1)
    monkeypatch.setattr(slices, "take_in_task", faults.together)
    faults.marker_of(tmp_path).write_text("2")
    other = nodes.add(env_vars={"MKL_CBWR": "COMPATIBLE"})
    with connect(nodes.address) as cluster, pytest.raises(ClusterError, match=r"different kinds.*MKL_CBWR=COMPATIBLE"):
        statistics(zoo, tmp_path, cluster)
    nodes.remove(other.node_id)
    assert [*tmp_path.glob("partial/*/slice-*")] == []


@pytest.mark.trust(after=1)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_statistics_are_those_of_one_pass(
    zoo: Zoo, alone: bytes, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    nodes.use(count)
    seen = Seen()
    monkeypatch.setattr(slices, "take_in_task", faults.together)
    faults.marker_of(tmp_path).write_text(str(count))
    with connect(nodes.address) as cluster:
        assert cluster.slots == count
        assert statistics(zoo, tmp_path, cluster, seen) == alone
    assert len([*tmp_path.glob(f"{faults.MARKER}-*")]) == count
    assert seen.done["collecting"] == seen.totals["collecting"] == SETTINGS.tokens


@pytest.mark.trust
def test_a_node_that_is_removed_in_the_middle_changes_nothing(
    zoo: Zoo,
    alone: bytes,
    nodes: Nodes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    nodes.use(3)
    monkeypatch.setattr(slices, "take_in_task", faults.stuck_once)
    removed = threading.Thread(target=lambda: nodes.remove(stuck(tmp_path)[0]))
    removed.start()
    with connect(nodes.address) as cluster:
        assert statistics(zoo, tmp_path, cluster) == alone
    removed.join()
    assert "raylet" not in capfd.readouterr().out  # where results go


def test_a_killed_process_changes_nothing(
    zoo: Zoo, alone: bytes, two: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "take_in_task", faults.killed_once)
    assert statistics(zoo, tmp_path, two) == alone
    assert faults.marker_of(tmp_path).exists()


def stuck(out: Path) -> tuple[str, int]:
    """Wait until a task does not go on; return its node's id and its process."""
    for _ in range(3000):  # a loaded machine is slow, not wrong
        with suppress(FileNotFoundError, ValueError):
            node, process = faults.marker_of(out).read_text().split()
            return node, int(process)
        time.sleep(0.1)
    raise AssertionError("no task has begun")


@pytest.mark.trust
def test_an_interrupt_cancels_tasks_and_the_next_run_goes_on(
    zoo: Zoo, alone: bytes, nodes: Nodes, two: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while one slice is taken and another cannot end."""
    processes: list[int] = []

    def interrupt() -> None:
        processes.append(stuck(tmp_path)[1])
        while not [*tmp_path.glob("partial/*/slice-*.safetensors")]:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(slices, "take_in_task", faults.stuck_once)
    thread = threading.Thread(target=interrupt)
    thread.start()
    words = ["collect", zoo.experts["code"], "--data", zoo.train["code"], "--out", tmp_path, "--ray", nodes.address]
    words += ["--tokens", SETTINGS.tokens, "--seq-len", SETTINGS.seq_len, "--batch-size", SETTINGS.batch_size]
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # in a background shell it is ignored
    try:
        result = CliRunner().invoke(main, [*map(str, words)])
        thread.join()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert result.exit_code == 130
    assert "run it again; it goes on where it stopped" in result.stderr
    for _ in range(600):
        with suppress(ProcessLookupError):
            os.kill(processes[0], 0)
            time.sleep(0.1)
            continue
        break
    else:
        raise AssertionError("the task goes on after it was cancelled")
    seen = Seen()
    assert statistics(zoo, tmp_path, two, seen) == alone
    half = SETTINGS.tokens // 2
    assert f"resuming an interrupted pass: {half} of {SETTINGS.tokens} tokens are counted already" in seen.remarks
    assert seen.done["collecting"] == half


def test_errors_of_tasks_are_ours_and_threads_those_of_the_main_process(
    zoo: Zoo, two: Cluster, tmp_path: Path, bare: Path
) -> None:
    def result(task: Callable[..., Any], shared: Any, folder: Path = tmp_path, cluster: Cluster = two) -> Any:
        return cluster.results(Step("working", "B", task, shared, [Task("it", (), 1)], folder), silent)[0].result

    assert result(threads_in_task, None) == torch.get_num_threads() == 1
    with pytest.raises(CheckpointError, match="holds other weights on this node"):
        result(open_in_task, slices.SharedCheckpoint(bare, "bare", "0" * 64))
    with pytest.raises(ClusterError, match="does not see the folder"):
        result(open_in_task, None, tmp_path / "absent")
    with pytest.raises(ZeroDivisionError):
        result(divide_in_task, 0)
    with pytest.raises(InvalidInputError, match="tasks take no GPU"):
        two.device("cuda")
    with pytest.raises(ClusterError, match=r"no node .* has 1 free GPUs"):
        result(divide_in_task, 1, cluster=Cluster(two.address, 1, gpus=1))
    with pytest.raises(ClusterError, match=r"no node .* has so many processors \(the largest has 1\)"):
        result(divide_in_task, 1, cluster=Cluster(two.address, 64))


def open_in_task(shared: Any, *, progress: Any) -> None:
    slices.open_shared(shared)


def divide_in_task(shared: int, *, progress: Any) -> float:
    return 1 / shared


def threads_in_task(shared: None, *, progress: Any) -> int:
    return torch.get_num_threads()


def test_self_sampled_text_is_that_of_one_process(two: Cluster, bare: Path, tmp_path: Path) -> None:
    settings = PassSettings(tokens=48, seq_len=16, batch_size=2)
    here, _ = collect_to(bare, tmp_path / "here", settings=settings)
    there, _ = collect_to(bare, tmp_path / "there", settings=settings, cluster=two)
    assert there.read_bytes() == here.read_bytes()


@pytest.fixture
def clustered(_filled_home: Path, two: Cluster, tmp_path: Path) -> Iterator[Registry]:
    """A registry with the base model and the five experts, on two nodes."""
    with Registry(copy_home(_filled_home, tmp_path / "clustered"), cluster=two) as opened:
        yield opened


RECIPES = [
    Recipe(),
    Recipe(trunk="ties", router="ridge"),
    Recipe(router="ridge", refine=1),
    Recipe(to="dense", trunk="mean"),
]


def test_compositions_are_equal_in_every_byte(
    filled: Registry, clustered: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_folder, "ONE_FILE_BYTES", 10_000)
    monkeypatch.setattr(model_folder, "SHARD_BYTES", 60_000)
    for number, recipe in enumerate(RECIPES):
        here, there = tmp_path / f"here{number}", tmp_path / f"there{number}"
        filled.compose(["code", "math"], here, recipe)
        clustered.compose(["code", "math"], there, recipe)
        files = files_of(here)
        assert len([name for name in files if name.endswith(".safetensors")]) > 2
        assert files_of(there) == files
    clustered.compose(["code", "law"], tmp_path / "there0", RECIPES[0], force=True)  # files that stay are not written
    filled.compose(["code", "law"], tmp_path / "here0", RECIPES[0], force=True)
    assert files_of(tmp_path / "there0") == files_of(tmp_path / "here0")


def test_evaluations_are_equal(filled: Registry, clustered: Registry, zoo: Zoo, tmp_path: Path) -> None:
    filled.compose(["code", "math"], tmp_path / "moe", Recipe(router="ridge"))
    data = {name: [zoo.test[name]] for name in ("code", "math")}
    settings = TestSettings(windows=6, seq_len=32, batch_size=4)
    wanted: dict[str, Any] = {"baselines": True, "oracle": True, "active_experts": "all"}
    wanted |= {"experts": ["code", "math"], "methods": ["mean-own", "btm"]}
    rows = filled.evaluate([tmp_path / "moe"], data, settings, **wanted)
    assert clustered.evaluate([tmp_path / "moe"], data, settings, **wanted) == rows
    assert len(rows) > 6


def test_a_list_of_experts_is_registered_alike(zoo: Zoo, two: Cluster, bare: Path, tmp_path: Path) -> None:
    """One expert fails where its text is read; it names itself, and the others are registered."""
    (tmp_path / "empty.txt").write_text("")
    listed = [
        {"name": "code", "checkpoint": str(bare), "data": [str(zoo.train["code"])], "alias": "good"},
        {"name": "math", "checkpoint": str(zoo.experts["math"]), "license": "mit", "tags": {"a": "b"}},
        {"name": "broken", "checkpoint": str(bare), "data": ["empty.txt"]},
        {"name": "law", "checkpoint": str(zoo.experts["law"])},
    ]
    (tmp_path / "experts.yaml").write_text(json.dumps(listed))
    found: list[Any] = []
    for home, cluster in ((tmp_path / "here", None), (tmp_path / "there", two)):
        seen = Seen()
        with Registry(home, cluster=cluster, progress=seen) as registry:
            result = registry.add_experts(tmp_path / "experts.yaml", settings=SETTINGS)
            assert [*result.registered] == ["code", "math", "law"]
            assert all(one.added for one in result.registered.values())
            assert isinstance(result.failed["broken"], CalibrationError)
            assert any(remark.startswith("broken is not registered: ") for remark in seen.remarks)
            again = registry.add_experts(tmp_path / "experts.yaml", settings=SETTINGS)
            assert not any(one.added for one in again.registered.values())
            versions = registry.versions()
            assert registry.resolve("code@good").name == "code"
            found.append([(one.ref, one.digest, one.content, one.tags, one.aliases) for one in versions])
            assert [*registry.home.work.glob("*")] == []
    assert found[0] == found[1]


def test_the_command_runs_on_a_cluster(zoo: Zoo, nodes: Nodes, two: Cluster, tmp_path: Path) -> None:
    """--ray takes the cluster that this process is connected to."""
    (tmp_path / "experts.yaml").write_text(f"- {{name: law, checkpoint: {zoo.experts['law']}}}\n")
    words = ["--home", tmp_path / "home", "add-experts", tmp_path / "experts.yaml", "--ray", nodes.address, "--json"]
    result = CliRunner().invoke(main, [*map(str, words)])
    assert result.exit_code == 0, result.stderr
    assert [one["ref"] for one in json.loads(result.stdout)["experts"]] == ["law@1"]
