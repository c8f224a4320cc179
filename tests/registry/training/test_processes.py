"""Proves: two processes train what one does, sharded or not; a killed run ends in the same bytes; failures end both.

Every run is a real one: torchrun starts two processes of one program, which talk over gloo. Sums over a batch come in
another order than in one process, so what trains agrees up to rounding; what is frozen agrees to the byte.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from registry import ExpertTraining, MixtureTraining, Recipe, Registry
from registry.checkpoint import Checkpoint
from registry.checkpoint.model_files import EXPERT_TRAINING, ROUTER_FILE
from registry.errors import InvalidInputError
from registry.training.launcher import joined
from tests.conftest import Zoo, files_of
from tests.running import ROOT

SETTINGS: dict[str, Any] = {
    "tokens": 6 * 4 * 32, "batch_size": 4, "seq_len": 32, "lr": 0.01, "device": "cpu", "dtype": "float32"
}  # fmt: skip
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def launch(
    registry: Registry, *words: object, fault: str | None = None, **settings: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command in two processes; `fault` as in `tests.launched`."""
    options = [
        word
        for name, value in settings.items()
        for word in ([f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)]))
    ]
    program = ["cli"] if fault is None else ["tests.launched", fault]
    home = registry.home
    return run_twice("-m", *program, "--home", home.path, "--database", home.database, *words, *options)


def run_twice(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a program in two processes."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("COV", "PYTEST", "REG_"))}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [*LAUNCHER, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def launch_expert(
    registry: Registry, zoo: Zoo, out: Path, fault: str | None = None, **changes: Any
) -> subprocess.CompletedProcess[str]:
    words = ("train-expert", "fresh", "--base", "base", "--data", zoo.train["code"], "--out", out)
    return launch(registry, *words, fault=fault, **(SETTINGS | changes))


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(
    ("changes", "fsdp"),
    [
        ({"trunk": "free", "accumulate": 2}, False),
        ({"coordinate": True, "router_bias": True}, True),
        ({"lora": 2}, False),
        ({"coordinate": True, "router_bias": True}, False),
        ({"trunk": "free", "accumulate": 2}, True),
    ],
)
def test_two_processes_train_what_one_does(
    filled: Registry, zoo: Zoo, tmp_path: Path, changes: dict[str, Any], fsdp: bool
) -> None:
    text, public = [zoo.train["code"]], [zoo.train["law"]] if "coordinate" in changes else []
    settings = ExpertTraining(**(SETTINGS | changes))
    alone = filled.train_expert("fresh", "base", text, settings, public_data=public, out=tmp_path / "alone")
    extra: dict[str, Any] = changes | ({"fsdp": True} if fsdp else {}) | ({"public_data": public[0]} if public else {})
    done = launch_expert(filled, zoo, tmp_path / "both", **extra)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained fresh in") == 1
    file = "adapter_model.safetensors" if "lora" in changes else "model.safetensors"
    one, two = (load_file(tmp_path / name / file) for name in ("alone", "both"))
    base = {name: torch.zeros_like(one[name]) for name in one} if "lora" in changes else load_file(zoo.base / file)
    mlp = Checkpoint(zoo.base).mlp
    for name, tensor in base.items():
        if "lora" in changes or name in mlp or changes.get("trunk") == "free":
            assert torch.allclose(one[name], two[name], atol=1e-4), name
            assert not torch.allclose(tensor, two[name], atol=1e-3), name
        else:
            assert torch.equal(tensor, two[name]), name
    document = json.loads((tmp_path / "both" / EXPERT_TRAINING).read_bytes())
    assert document["loss"] == pytest.approx(alone.document["loss"], abs=1e-4)  # so batches held the same windows
    assert document["held_out"]["before"] == pytest.approx(alone.losses.before, abs=1e-5)
    assert document["training"] == alone.document["training"] | {"processes": 2, "fsdp": fsdp}
    if public:
        rows = [load_file(tmp_path / name / ROUTER_FILE) for name in ("alone", "both")]
        for key in ("rows", "bias"):
            assert torch.allclose(rows[0][key], rows[1][key], atol=1e-4)
        assert rows[1]["rows"].all()
        assert rows[1]["bias"].max() <= 0
    assert not list(filled.home.partial.iterdir())
    assert not list(filled.home.merged.iterdir())


@pytest.mark.trust
@pytest.mark.parametrize(
    "changes",
    [
        {"fsdp": True},
        {},
        {"lora": 2},
        {"coordinate": True, "router_bias": True, "fsdp": True},
        {"train": "all", "fsdp": True},
        {"train": "mlps", "dtype": "bfloat16"},
    ],
    ids=str,
)
def test_a_killed_run_ends_in_the_same_bytes(
    filled: Registry, zoo: Zoo, tmp_path: Path, changes: dict[str, Any]
) -> None:
    words: tuple[object, ...] = ("train-expert", "fresh", "--base", "base", "--data", zoo.train["code"])
    if "train" in changes:
        filled.compose(["code", "law"], tmp_path / "moe", Recipe(router="random", trunk="mean", top_k=2))
        words = ("train", tmp_path / "moe", "--data", zoo.train["code"])

    def run(out: str, fault: str | None) -> subprocess.CompletedProcess[str]:
        return launch(filled, *words, "--out", tmp_path / out, fault=fault, **(SETTINGS | changes))

    assert run("whole", None).returncode == 0
    died = run("out", "killed:4")
    assert died.returncode != 0
    assert not (tmp_path / "out").exists()
    (state,) = filled.home.partial.glob("*/state.safetensors")
    assert load_file(state)
    done = run("out", "none")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("an interrupted training goes on: 4 of 6 steps were done before") == 1
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert not list(filled.home.partial.iterdir())


@pytest.mark.trust
@pytest.mark.parametrize(
    ("fault", "changes", "message"),
    [
        ("saving", {"fsdp": True}, "error: the disk is full"),
        ("worker:3", {"fsdp": True}, "error: process 1 of 2 failed: MemoryError: no memory is left"),
        ("worker:3", {}, "error: process 1 of 2 failed: MemoryError: no memory is left"),
        ("text", {}, "error: the 2 processes have read different text"),
        ("none", {"batch_size": 3}, "error: batch_size is 3, 2 processes cannot share its windows evenly"),
        ("none", {"lr": 1e30, "warmup": 0}, "error: the loss "),
        ("writing", {}, "error: the disk is full"),
    ],
)
def test_a_failure_of_one_ends_both(
    filled: Registry, zoo: Zoo, tmp_path: Path, fault: str, changes: dict[str, Any], message: str
) -> None:
    done = launch_expert(filled, zoo, tmp_path / "out", fault, **changes)
    assert done.returncode != 0
    assert not (tmp_path / "out").exists()
    assert done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert errors[0].startswith(message)
    assert "Traceback" not in done.stderr.partition("ChildFailedError")[0].partition("failed (exitcode")[0]
    assert not list(filled.home.merged.glob("*"))


@pytest.mark.trust
@pytest.mark.parametrize(("what", "fsdp"), [("all", True), ("mlps", False)])
def test_a_mixture_trains_in_two_processes(filled: Registry, zoo: Zoo, tmp_path: Path, what: str, fsdp: bool) -> None:
    """The balance loss is that of each process's windows, so the same as of one process that accumulates them."""
    filled.compose(["code", "law"], tmp_path / "moe", Recipe(router="random", trunk="mean", top_k=2))
    halves, text = SETTINGS | {"batch_size": 2, "accumulate": 2}, str(zoo.train["code"])
    alone = filled.train(tmp_path / "moe", tmp_path / "alone", [text], MixtureTraining(what, **halves))
    words = ("train", tmp_path / "moe", "--train", what, "--data", text, "--out", tmp_path / "both")
    done = launch(filled, *words, **(SETTINGS | ({"fsdp": True} if fsdp else {})))
    assert done.returncode == 0, done.stderr
    old, one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("moe", "alone", "both"))
    for name, tensor in old.items():
        if what == "all" or ".block_sparse_moe." in name:
            assert torch.allclose(one[name], two[name], atol=1e-4), name
            assert not torch.equal(tensor, two[name])
        else:
            assert torch.equal(tensor, two[name])
    (composition,) = [one for one in filled.compositions() if str(tmp_path / "both") in one.folders]
    trained = composition.document["training"]
    assert trained["loss"] == pytest.approx(alone.document["training"]["loss"], abs=3e-4)  # sums in another order
    assert (trained["processes"], trained["fsdp"]) == (2, fsdp)
    assert filled.reproduce(tmp_path / "both").is_same


def test_what_one_process_cannot_do_is_refused(
    filled: Registry, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ExpertTraining(**(SETTINGS | {"fsdp": True}))
    with pytest.raises(InvalidInputError, match="over processes, and there is one") as caught:
        filled.train_expert("fresh", "base", [zoo.train["code"]], settings)
    assert "torchrun" in str(caught.value.hint)
    with pytest.raises(InvalidInputError, match="--fsdp has no meaning"):
        ExpertTraining(fsdp=True, lora=2)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(InvalidInputError, match="ACCELERATE_USE_FSDP") as caught, joined():
        pass
    assert "--fsdp" in str(caught.value.hint)


PROGRAM = """
import json, os, sys
from pathlib import Path
from registry import ExpertTraining, MixtureTraining, Recipe, Registry, SoupTraining
from registry.errors import RegError

home, text, out = map(Path, sys.argv[1:4])
settings = json.loads((out / "settings.json").read_text())
with Registry(home, database=sys.argv[4]) as registry:
    expert = registry.train_expert("fresh", "base", [text], ExpertTraining(**settings))
    assert registry.resolve("fresh").ref == "fresh@1"
    mixture = registry.train(out / "moe", out / "trained", [str(text)], MixtureTraining("mlps", **settings))
    told = [expert.document, expert.losses.after, mixture.digest, mixture.document, mixture.before, mixture.after]
    refused = []
    for train in (
        lambda: registry.train(out / "moe", out / "no", [str(text)], MixtureTraining("routers", **settings)),
        lambda: registry.train_soup("soup", "base", {"a": [text], "b": [text]}, SoupTraining(experts=1, **settings)),
    ):
        try:
            train()
        except RegError as error:
            refused.append(error.message)
rank, registered = os.environ["RANK"], expert.registration is not None
(out / f"{rank}.json").write_text(json.dumps({"told": told, "registered": registered, "refused": refused}))
"""


@pytest.mark.trust
def test_a_program_trains_in_all_processes_and_registers_in_the_first(
    filled: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    filled.compose(["code", "law"], tmp_path / "moe", Recipe(router="random", trunk="mean", top_k=2))
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "settings.json").write_text(json.dumps(SETTINGS))
    home = filled.home
    done = run_twice(tmp_path / "program.py", home.path, zoo.train["code"], tmp_path, home.database)
    assert done.returncode == 0, done.stderr
    main, worker = (json.loads((tmp_path / f"{rank}.json").read_bytes()) for rank in (0, 1))
    assert main["told"] == worker["told"]
    assert (main["registered"], worker["registered"]) == (True, False)
    for rank, refused in enumerate((main["refused"], worker["refused"])):
        begun = "process 1 of 2 failed: " if rank else ""
        assert refused == [
            f"{begun}{what} in one process, and a launcher started 2"
            for what in ("routers alone train", "a soup trains")
        ]
    assert [version.ref for version in filled.versions() if version.name == "fresh"] == ["fresh@1"]
    assert filled.reproduce(tmp_path / "trained").is_same
    assert not list(filled.home.partial.iterdir())
