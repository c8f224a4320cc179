"""Proves: with one layer of a checkpoint in memory, statistics are those of the whole model, bit for bit.

For every family, dtype of the computation, setting of the pass and interruption.
"""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import PassSettings, Registry
from registry.checkpoint import Checkpoint
from registry.errors import CalibrationError, StorageError
from registry.families import FAMILIES
from registry.progress import silent
from registry.runtime.layerwise import Layers
from registry.runtime.row_file import RowFile
from registry.runtime.upcast import load_for_pass
from registry.statistics import file as statistics_file
from registry.statistics import layer_pass
from registry.statistics.file import Collected
from registry.statistics.forward_pass import computed_by, take_statistics
from registry.statistics.layer_pass import PassMemory, take_statistics_by_layer
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint
from tests.registry.statistics.windows import UNEVEN

SETTINGS = PassSettings(batch_size=3, dtype="float32", device="cpu")
LAYERS = 2


def whole(checkpoint: Checkpoint, settings: PassSettings) -> Collected:
    model = load_for_pass(checkpoint.folder, settings.dtype, settings.device)
    return take_statistics(checkpoint, "a" * 64, model, UNEVEN, settings, progress=silent)


def by_layer(checkpoint: Checkpoint, settings: PassSettings, partial: Path | None = None) -> Collected:
    return take_statistics_by_layer(checkpoint, "a" * 64, UNEVEN, settings, partial=partial, progress=silent)


def check(checkpoint: Checkpoint, settings: PassSettings, partial: Path | None = None) -> None:
    """Check that statistics taken by layer, perhaps from what is left of a pass, are those of the whole model."""
    found, expected = by_layer(checkpoint, settings, partial), whole(checkpoint, settings)
    assert found == expected
    assert partial is None or list(partial.iterdir()) == []


@pytest.mark.check(after=3)
@pytest.mark.trust(after=6)
@pytest.mark.parametrize(
    ("stored", "computed"),
    [("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")],
)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_equals_the_whole_model(family: str, stored: str, computed: str, tmp_path: Path, tokenizer: Any) -> None:
    model, dtype = make_model(family, 101, head_dim=8), getattr(torch, stored)
    checkpoint = Checkpoint(save_checkpoint(model, tmp_path / family, tokenizer, dtype=dtype), remote_code=True)
    assert checkpoint.dtype == stored
    check(checkpoint, PassSettings(batch_size=3, dtype=computed, device="cpu"), tmp_path / "partial")


@pytest.mark.parametrize(("sites", "batch_size"), [("all", 1), ("router", 2), ("all", 7), ("router", 16)])
def test_equals_the_whole_model_in_every_setting(sites: str, batch_size: int, zoo: Zoo) -> None:
    settings = PassSettings(batch_size=batch_size, dtype="float32", device="cpu", sites=sites)
    check(Checkpoint(zoo.experts["math"]), settings)


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
def test_layers_may_differ(family: str, changes: dict[str, Any], tmp_path: Path, tokenizer: Any) -> None:
    folder = save_checkpoint(make_model(family, 101, head_dim=8, **changes), tmp_path / "checkpoint", tokenizer)
    check(Checkpoint(folder, remote_code=True), SETTINGS)


@pytest.fixture
def resident(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts of models that are loaded, one after the other."""
    paths: list[str] = []
    load = Layers.resident

    def recorded(self: Any, path: str, weights: Any) -> Any:
        paths.append(path)
        return load(self, path, weights)

    monkeypatch.setattr(Layers, "resident", recorded)
    return paths


@pytest.mark.check(after=2)
@pytest.mark.trust(after=4)
@pytest.mark.parametrize("writes", range(6))
def test_resumes_after_the_last_layer(
    writes: int, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resident: list[str]
) -> None:
    """Interrupted at the write of a batch's stream after so many others."""
    checkpoint, finished, write = Checkpoint(zoo.experts["math"]), writes // 3, RowFile.write
    left = iter(range(writes))

    def counted(self: RowFile, start: int, rows: torch.Tensor) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        write(self, start, rows)

    with monkeypatch.context() as patch:
        patch.setattr(RowFile, "write", counted)
        with pytest.raises(KeyboardInterrupt):
            by_layer(checkpoint, SETTINGS, tmp_path)
    assert len(list(tmp_path.glob("*/*.safetensors"))) == finished
    resident.clear()
    check(checkpoint, SETTINGS, tmp_path)
    assert resident == [*(f"model.layers.{number}" for number in range(finished, LAYERS)), "model.norm"]


def after_saving(patch: pytest.MonkeyPatch, action: Callable[[Path, str], None]) -> None:
    """Do something with the folder of a pass each time after it saved the sums of a layer, or of the head."""
    save = layer_pass._LayerPass._save

    def saving(self: Any, name: str, sums: Any) -> Collected:
        result = save(self, name, sums)
        action(self.folder, name)
        return result

    patch.setattr(layer_pass._LayerPass, "_save", saving)


@pytest.mark.check(after=1)
@pytest.mark.parametrize("damage", ["sums", "streams", "missing", "other pass"])
def test_files_of_others_are_not_used(damage: str, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint(zoo.experts["math"])

    def stop(_: Path, name: str) -> None:
        if name == "1":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        after_saving(patch, stop)
        with pytest.raises(KeyboardInterrupt):
            by_layer(checkpoint, SETTINGS, tmp_path)
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
        parts = [(site, 0, layers[0]) for site, layers in state.sites.items()]
        statistics_file.save(first, other, parts)
    check(checkpoint, SETTINGS, tmp_path)


def test_a_folder_deleted_meanwhile_is_reported(zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    after_saving(monkeypatch, lambda folder, _: shutil.rmtree(folder))
    with pytest.raises(StorageError, match="was deleted while statistics were collected"):
        by_layer(Checkpoint(zoo.experts["math"]), SETTINGS, tmp_path)


def test_activations_that_are_not_finite_are_refused(tmp_path: Path, tokenizer: Any) -> None:
    model = make_model("llama", 101)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0] = 3e38
    checkpoint = Checkpoint(save_checkpoint(model, tmp_path / "checkpoint", tokenizer))
    with pytest.raises(CalibrationError, match="layer 1"):
        by_layer(checkpoint, SETTINGS)


KILLED = """
import os, signal, sys
from registry import PassSettings, Registry
from registry.statistics import layer_pass

checkpoint, home, text, name = sys.argv[1:]
save = layer_pass._LayerPass._save

def killed(self, own, sums):
    result = save(self, own, sums)
    if own == name:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

layer_pass._LayerPass._save = killed
with Registry(home) as registry:
    registry.add_expert("math", checkpoint, data=[text], settings=PassSettings(512, 32, 4, max_memory=1))
"""


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(
    ("killed_after", "loaded"),
    [("1", ["model.norm"]), ("0", ["model.layers.1", "model.norm"]), ("head", ["model.norm"])],
)
def test_a_killed_registration_goes_on_after_the_last_layer(
    killed_after: str, loaded: list[str], zoo: Zoo, tmp_path: Path, resident: list[str]
) -> None:
    home, checkpoint = tmp_path / "home", zoo.experts["math"]
    arguments = [str(checkpoint), str(home), str(zoo.train["math"]), killed_after]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    settings = PassSettings(512, 32, 4, max_memory=1)
    with Registry(home) as registry:
        found = registry.add_expert("math", checkpoint, data=[zoo.train["math"]], settings=settings).version
        assert not list(registry.home.partial.iterdir())
    assert resident == loaded
    with Registry(tmp_path / "other") as registry:
        settings = PassSettings(512, 32, 4)
        assert (
            registry.add_expert("math", checkpoint, data=[zoo.train["math"]], settings=settings).version.digest
            == found.digest
        )


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("sites", ["all", "router"])
def test_the_way_follows_from_the_memory_and_leaves_no_trace(
    sites: str, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, ways = Checkpoint(zoo.experts["math"]), list[str]()

    def watched(name: str, take: Callable[..., Collected]) -> None:
        def taking(*args: Any, **kwargs: Any) -> Collected:
            ways.append(name)
            return take(*args, **kwargs)

        monkeypatch.setattr(f"registry.statistics.collect.{name}", taking)

    watched("take_statistics", take_statistics)
    watched("take_statistics_by_layer", take_statistics_by_layer)
    need = PassMemory.of(checkpoint, PassSettings(512, 32, 4, sites=sites), 32).whole
    versions = []
    for name, most in (("any", None), ("enough", need), ("less", need - 1), ("free", None)):
        if name == "free":
            monkeypatch.setattr("registry.statistics.layer_pass.free_memory", lambda device: need - 1)
        own = PassSettings(512, 32, 4, sites=sites, max_memory=most)
        with Registry(tmp_path / name) as registry:
            versions.append(
                registry.add_expert("math", zoo.experts["math"], data=[zoo.train["math"]], settings=own).version
            )
    assert ways == ["take_statistics"] * 2 + ["take_statistics_by_layer"] * 2
    assert len({version.digest for version in versions}) == 1  # it covers the digests of all arrays
    for version in versions:
        computed = (version.content or {})["computed"]
        assert {key: value for key, value in computed.items() if "evidence" not in key} == computed_by(checkpoint, own)


def test_an_expert_that_samples_its_text_must_fit_without_its_sums(bare: Path, tmp_path: Path) -> None:
    need = PassMemory.of(Checkpoint(bare), PassSettings(64, 16, 2), 16)
    assert need.model < need.by_layer < need.whole
    digests = []
    for most in (None, need.model):
        with Registry(tmp_path / str(most)) as registry:
            settings = PassSettings(64, 16, 2, max_memory=most)
            digests.append(registry.add_expert("code", bare, settings=settings).version.digest)
    assert digests[0] == digests[1]
    settings = PassSettings(64, 16, 2, max_memory=need.model - 1)
    message = "cannot write calibration text itself"
    with Registry(tmp_path / "home") as registry, pytest.raises(CalibrationError, match=message) as caught:
        registry.add_expert("code", bare, settings=settings)
    assert "--data FILE" in str(caught.value.hint)
