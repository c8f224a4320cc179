"""Proves: with one layer of a checkpoint in memory, statistics are those of the whole model, bit for bit.

For every family, dtype of the computation, setting of the pass and interruption.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import PassSettings, Registry
from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.errors import CalibrationError, StorageError
from registry.families import FAMILIES
from registry.progress import silent
from registry.registration.register import _arrays
from registry.runtime.layerwise import Layers
from registry.runtime.row_file import RowFile
from registry.runtime.upcast import load_for_pass
from registry.statistics import file as statistics_file
from registry.statistics import onloading
from registry.statistics.file import Collected
from registry.statistics.forward_pass import ModelRun, computed_by, take_statistics
from registry.statistics.onloading import take_statistics_by_layer
from registry.statistics.pass_need import PassNeed
from store.arrays import digest_of
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint

SETTINGS = PassSettings(batch_size=3, dtype="float32", device="cpu")
LAYERS = 2


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    """Windows of different lengths, which do not fill the last batch."""
    ids = torch.randint(1, 320, (7, 16), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    return Calibration(ids, torch.tensor([16, 5, 16, 16, 1, 9, 16], dtype=torch.int32), "text")


def whole(checkpoint: Checkpoint, calibration: Calibration, settings: PassSettings) -> Collected:
    model = load_for_pass(checkpoint.folder, settings.dtype, settings.device)
    return take_statistics(checkpoint, "a" * 64, ModelRun(model), calibration, settings, progress=silent)


def by_layer(
    checkpoint: Checkpoint, calibration: Calibration, settings: PassSettings, partial: Path | None = None
) -> Collected:
    return take_statistics_by_layer(checkpoint, "a" * 64, calibration, settings, partial=partial, progress=silent)


def digests(checkpoint: Checkpoint, collected: Collected) -> dict[str, str]:
    """Return the digest of every array of statistics that a registration would store."""

    class Hashed:
        def __init__(self) -> None:
            self.checkpoint: Any = checkpoint
            self.tensors: Any = dict.fromkeys((*checkpoint.trunk, *checkpoint.mlp), "")
            self.own: dict[str, Any] = {}
            self.files: dict[str, bytes] = {}

    hashed: Any = Hashed()
    return {name: digest_of(source) for role, name, source, _ in _arrays(hashed, collected) if role == "statistics"}


def assert_equal(checkpoint: Checkpoint, found: Collected, expected: Collected) -> None:
    assert found == expected
    assert found.token_counts is not None
    assert expected.token_counts is not None
    assert torch.equal(found.token_counts, expected.token_counts)
    stored = digests(checkpoint, found)
    assert len(stored) > 2
    assert stored == digests(checkpoint, expected)


@pytest.mark.check(after=3)
@pytest.mark.trust(after=6)
@pytest.mark.parametrize(
    ("stored", "computed"),
    [("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")],
)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_equals_the_whole_model(
    family: str, stored: str, computed: str, calibration: Calibration, tmp_path: Path, tokenizer: Any
) -> None:
    model = make_model(family, 101, head_dim=8)
    checkpoint = Checkpoint(
        save_checkpoint(model, tmp_path / family, tokenizer, dtype=getattr(torch, stored)), remote_code=True
    )
    assert checkpoint.dtype == stored
    settings = PassSettings(batch_size=3, dtype=computed, device="cpu")
    found = by_layer(checkpoint, calibration, settings, tmp_path / "partial")
    assert list((tmp_path / "partial").iterdir()) == []
    assert_equal(checkpoint, found, whole(checkpoint, calibration, settings))


@pytest.mark.check(after=4)
@pytest.mark.parametrize("sites", ["all", "router"])
@pytest.mark.parametrize(("batch_size", "folds"), [(1, 1), (2, 3), (7, 2), (16, 2)])
def test_equals_the_whole_model_in_every_setting(
    sites: str, batch_size: int, folds: int, calibration: Calibration, zoo: Zoo
) -> None:
    checkpoint = Checkpoint(zoo.experts["math"])
    settings = PassSettings(batch_size=batch_size, dtype="float32", device="cpu", sites=sites, folds=folds)
    assert_equal(checkpoint, by_layer(checkpoint, calibration, settings), whole(checkpoint, calibration, settings))


@pytest.mark.check(after=3)
@pytest.mark.trust(after=7)
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("qwen2", {"attention_bias": True, "tie_word_embeddings": True}),
        ("mistral", {"sliding_window": 4}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
        ("olmo3", {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}),
        ("cohere2", {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}),
        ("gemma2", {"sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]}),
        ("smollm3", {"no_rope_layers": [0, 1]}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}),
    ],
)
def test_equals_the_whole_model_whatever_a_layer_depends_on(
    family: str, changes: dict[str, Any], calibration: Calibration, tmp_path: Path, tokenizer: Any
) -> None:
    folder = save_checkpoint(make_model(family, 101, head_dim=8, **changes), tmp_path / "checkpoint", tokenizer)
    checkpoint = Checkpoint(folder, remote_code=True)
    assert_equal(checkpoint, by_layer(checkpoint, calibration, SETTINGS), whole(checkpoint, calibration, SETTINGS))


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch, writes: int, error: type[BaseException]) -> Iterator[None]:
    """Interrupt a pass at the write of a batch's stream after so many others."""
    count, write = 0, RowFile.write

    def counted(self: RowFile, start: int, rows: torch.Tensor) -> None:
        nonlocal count
        if count == writes:
            raise error
        count += 1
        write(self, start, rows)

    with monkeypatch.context() as patch:
        patch.setattr(RowFile, "write", counted)
        with pytest.raises(error):
            yield


@pytest.mark.check(after=2)
@pytest.mark.trust(after=6)
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("writes", range(6))
def test_resumes_after_the_last_finished_layer(
    writes: int,
    error: type[BaseException],
    calibration: Calibration,
    zoo: Zoo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = Checkpoint(zoo.experts["math"])
    with interrupted(monkeypatch, writes, error):
        by_layer(checkpoint, calibration, SETTINGS, tmp_path)
    finished = writes // 3
    assert len(list(tmp_path.glob("*/*.safetensors"))) == finished
    resident: list[str] = []
    load = Layers.resident

    def recorded(self: Any, path: str, weights: Any) -> Any:
        resident.append(path)
        return load(self, path, weights)

    monkeypatch.setattr(Layers, "resident", recorded)
    found = by_layer(checkpoint, calibration, SETTINGS, tmp_path)
    assert resident == [*(f"model.layers.{number}" for number in range(finished, LAYERS)), "model.norm"]
    assert_equal(checkpoint, found, whole(checkpoint, calibration, SETTINGS))
    assert not list(tmp_path.iterdir())


@pytest.mark.check(after=1)
@pytest.mark.parametrize("damage", ["sums", "streams", "missing", "other pass"])
def test_files_that_do_not_fit_are_not_used(
    damage: str, calibration: Calibration, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(zoo.experts["math"])
    with monkeypatch.context() as patch:
        patch.setattr(onloading._LayerPass, "_save", stop_at("head", onloading._LayerPass._save))
        with pytest.raises(KeyboardInterrupt):
            by_layer(checkpoint, calibration, SETTINGS, tmp_path)
    (folder,) = tmp_path.iterdir()
    first = folder / "0.safetensors"
    if damage == "sums":
        first.write_bytes(first.read_bytes()[:-8])
    elif damage == "streams":
        with (folder / "stream.0").open("r+b") as file:
            file.truncate(100)
    elif damage == "missing":
        first.unlink()  # the streams are those after the second layer
    else:
        state = statistics_file.load(first)
        other = Collected("b" * 64, {}, state.calibration_digest, state.calibration_label, state.computed)
        parts = [(site, 0, layers[0], [*state.folds.get(site, [()])[0]]) for site, layers in state.sites.items()]
        statistics_file.save(first, other, parts)
    found = by_layer(checkpoint, calibration, SETTINGS, tmp_path)
    assert_equal(checkpoint, found, whole(checkpoint, calibration, SETTINGS))


def stop_at(name: str, save: Any) -> Any:
    """Return `save` interrupted at the sums of one name."""

    def stopping(self: Any, own: str, sums: Any) -> Collected:
        if own == name:
            raise KeyboardInterrupt
        result: Collected = save(self, own, sums)
        return result

    return stopping


def test_a_folder_deleted_meanwhile_is_reported(
    calibration: Calibration, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = onloading._LayerPass._save

    def deleting(self: Any, name: str, sums: Any) -> Collected:
        result = save(self, name, sums)
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()
        return result

    monkeypatch.setattr(onloading._LayerPass, "_save", deleting)
    with pytest.raises(StorageError, match="was deleted while statistics were collected"):
        by_layer(Checkpoint(zoo.experts["math"]), calibration, SETTINGS, tmp_path)


def test_activations_that_are_not_finite_are_refused(calibration: Calibration, tmp_path: Path, tokenizer: Any) -> None:
    model = make_model("llama", 101)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0, 0] = 3e38
        model.model.layers[0].mlp.down_proj.weight[0, 1:] = 3e38
    checkpoint = Checkpoint(save_checkpoint(model, tmp_path / "checkpoint", tokenizer))
    with pytest.raises(CalibrationError, match="layer 1"):
        by_layer(checkpoint, calibration, SETTINGS)


KILLED = """
import os, signal, sys
from registry import PassSettings, Registry
from registry.statistics import onloading

checkpoint, home, text, name = sys.argv[1:]
save = onloading._LayerPass._save

def killed(self, own, sums):
    result = save(self, own, sums)
    if own == name:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

onloading._LayerPass._save = killed
with Registry(home) as registry:
    registry.add_expert("math", checkpoint, data=[text], settings=PassSettings(512, 32, 4, max_memory=1))
"""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A calibration text."""
    path = tmp_path / "text.txt"
    path.write_text("two and two make four, and four and four make eight. " * 200, encoding="utf-8")
    return path


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("killed_after", ["1", "0", "head"])
def test_a_killed_registration_goes_on_after_the_last_layer(
    killed_after: str, zoo: Zoo, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, checkpoint = tmp_path / "home", zoo.experts["math"]
    arguments = [str(checkpoint), str(home), str(text), killed_after]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    resident: list[str] = []
    load = Layers.resident

    def recorded(self: Any, path: str, weights: Any) -> Any:
        resident.append(path)
        return load(self, path, weights)

    monkeypatch.setattr(Layers, "resident", recorded)
    settings = PassSettings(512, 32, 4, max_memory=1)
    with Registry(home) as registry:
        found = registry.add_expert("math", checkpoint, data=[text], settings=settings).version
        assert not list(registry.home.partial.iterdir())
    assert (
        resident == {"0": ["model.layers.1", "model.norm"], "1": ["model.norm"], "head": ["model.norm"]}[killed_after]
    )
    with Registry(tmp_path / "other") as registry:
        settings = PassSettings(512, 32, 4)
        assert registry.add_expert("math", checkpoint, data=[text], settings=settings).version.digest == found.digest


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("sites", ["all", "router"])
def test_the_way_follows_from_the_memory_and_leaves_no_trace_in_a_version(
    sites: str, zoo: Zoo, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(zoo.experts["math"])
    ways: list[str] = []
    by_layer_, whole_ = onloading.take_statistics_by_layer, take_statistics

    def layered(*args: Any, **kwargs: Any) -> Collected:
        ways.append("by layer")
        return by_layer_(*args, **kwargs)

    def at_once(*args: Any, **kwargs: Any) -> Collected:
        ways.append("whole")
        return whole_(*args, **kwargs)

    monkeypatch.setattr("registry.statistics.collect.take_statistics_by_layer", layered)
    monkeypatch.setattr("registry.statistics.collect.take_statistics", at_once)
    settings = PassSettings(512, 32, 4, sites=sites)
    need = PassNeed.of(checkpoint, settings, 32).whole
    versions = []
    for number, most in enumerate((None, need, need - 1)):
        own = PassSettings(512, 32, 4, sites=sites, max_memory=most)
        with Registry(tmp_path / str(number)) as registry:
            versions.append(registry.add_expert("math", zoo.experts["math"], data=[text], settings=own).version)
    monkeypatch.setattr("registry.statistics.pass_need.free_memory", lambda device: need - 1)
    with Registry(tmp_path / "free") as registry:
        versions.append(registry.add_expert("math", zoo.experts["math"], data=[text], settings=settings).version)
    assert ways == ["whole", "whole", "by layer", "by layer"]
    assert len({version.digest for version in versions}) == 1  # it covers the digests of all arrays
    assert [version.content["computed"] for version in versions if version.content] == [
        computed_by(checkpoint, own)
    ] * 4


def test_an_expert_that_samples_its_text_must_fit_without_its_sums(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in zoo.experts["math"].iterdir():
        if not file.name.startswith(("calibration", "statistics")):
            (bare / file.name).write_bytes(file.read_bytes())
    need = PassNeed.of(Checkpoint(bare), PassSettings(64, 16, 2), 16)
    assert need.model < need.by_layer < need.whole
    versions = []
    for most in (None, need.model):
        with Registry(tmp_path / str(most)) as registry:
            settings = PassSettings(64, 16, 2, max_memory=most)
            versions.append(registry.add_expert("math", bare, settings=settings).version.digest)
    assert versions[0] == versions[1]
    with (
        Registry(tmp_path / "home") as registry,
        pytest.raises(CalibrationError, match="cannot write calibration text itself") as caught,
    ):
        registry.add_expert("math", bare, settings=PassSettings(64, 16, 2, max_memory=need.model - 1))
    assert "--data FILE" in str(caught.value.hint)
