"""Proves: an adapter registers as its merged checkpoint would, wherever its base model is, or says what to name."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from registry import PassSettings, Registry
from registry.errors import CheckpointError, IncompatibleError, InvalidInputError, NotFoundError
from registry.runtime.loading import quiet_transformers
from registry.statistics.collect import collect_to
from tests.conftest import SETTINGS, Zoo, files_of
from tests.models import make_model, save_checkpoint
from tests.registry.checkpoint.changes import adapter_config
from tests.remarks import Remarks

# PEFT asks transformers in words that it has given up.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")

COUNTS = PassSettings(tokens=64, seq_len=32, sites="counts")


@pytest.fixture(scope="module")
def trained(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An adapter that was trained on the base for some steps, and the same merged by PEFT."""
    root = tmp_path_factory.mktemp("adapter")
    with quiet_transformers(), torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = AutoModelForCausalLM.from_pretrained(zoo.base)
        settings = LoraConfig(r=4, target_modules="all-linear", use_dora=True, task_type="CAUSAL_LM")
        adapted: Any = get_peft_model(model, settings)
        optimizer = torch.optim.AdamW((p for p in adapted.parameters() if p.requires_grad), lr=0.03)
        for _ in range(5):
            ids = torch.randint(1, 320, (4, 16))
            adapted(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        adapted.save_pretrained(root / "adapter")
        adapted.merge_and_unload().save_pretrained(root / "merged")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (root / "merged" / name).write_bytes((zoo.base / name).read_bytes())
    return root / "adapter", root / "merged"


@pytest.fixture
def elsewhere(trained: tuple[Path, Path], tmp_path: Path) -> Path:
    """The adapter, its base model's path being none of this machine."""
    folder = shutil.copytree(trained[0], tmp_path / "elsewhere")
    adapter_config(base_model_name_or_path=None)(folder)
    return folder


@pytest.mark.check
def test_adapter_composes_to_the_bytes_of_its_merged_checkpoint(
    trained: tuple[Path, Path], zoo: Zoo, tmp_path: Path
) -> None:
    """All but the digest of the member, which is made of the adapter."""
    made = []
    for kind, checkpoint in zip(("adapter", "merged"), trained, strict=True):
        with Registry(tmp_path / kind) as registry:
            registry.add_base("base", zoo.base)
            registry.add_expert("math", zoo.experts["math"])
            registry.add_expert("tuned", checkpoint, data=[zoo.train["law"]], settings=SETTINGS)
            registry.compose(["math", "tuned"], tmp_path / f"{kind}-moe")
            made.append(files_of(tmp_path / f"{kind}-moe"))
            assert any(link.role == "adapter" for link in registry.arrays_of(registry.resolve("tuned"))) is (
                kind == "adapter"
            )
            assert not list(registry.home.merged.glob("*"))
            assert registry.verify().problems == ()
    differ = {name for name in made[0] | made[1] if made[0].get(name) != made[1].get(name)}
    assert differ <= {"composition.json", "README.md"}


@pytest.mark.parametrize("base", ["base", "base@1", "folder"])
def test_base_is_a_registered_name_or_a_folder(
    filled: Registry, trained: tuple[Path, Path], elsewhere: Path, zoo: Zoo, base: str
) -> None:
    """One that the adapter's configuration does not name is remarked on."""
    filled.progress = told = Remarks()
    adapter, named = elsewhere if base == "base@1" else trained[0], zoo.base if base == "folder" else base
    registered = filled.add_expert("tuned", adapter, base=named, data=[zoo.train["law"]], settings=COUNTS)
    assert registered.added
    assert registered.relations[0].ref == "base@1"
    assert registered.relations[0].verdict == "same base"
    assert ("is taken as an adapter of base, as asked; its configuration names" in told.text) is (base == "base")


def test_collect_and_check_take_adapters(
    filled: Registry, trained: tuple[Path, Path], zoo: Zoo, tmp_path: Path
) -> None:
    path, collected = collect_to(trained[0], tmp_path / "out", data=[zoo.train["law"]], settings=SETTINGS)
    assert path.is_file()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    _, merged = collect_to(trained[1], tmp_path / "out2", data=[zoo.train["law"]], settings=SETTINGS)
    assert collected == merged
    found = filled.check(trained[0], data=[zoo.train["law"]], settings=SETTINGS)
    assert found.family == "llama"
    assert found.hosts == ("mixtral", "remote-code")
    assert found.overlaps is not None
    assert len(found.overlaps) == 5
    assert filled.check(zoo.experts["code"]).relations[0].verdict == "same weights"
    assert [v.ref for v in filled.versions()] == [f"{n}@1" for n in ("base", "biomed", "code", "german", "law", "math")]


def test_base_that_cannot_be_had_asks_for_a_name(
    filled: Registry, elsewhere: Path, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name, message in (
        (None, "does not say which base model it belongs to"),
        ("nobody/nothing", "its base model 'nobody/nothing' cannot be fetched: "),
        ("/nowhere/base", "names the folder /nowhere/base as its base model, which is not here"),
    ):
        adapter_config(base_model_name_or_path=name)(elsewhere)
        with pytest.raises(CheckpointError, match=message) as caught:
            filled.add_expert("tuned", elsewhere)
        assert "--base NAME[@V]" in str(caught.value.hint)
    with pytest.raises(NotFoundError, match="there is no"):
        filled.add_expert("tuned", elsewhere, base="nonesuch")
    with pytest.raises(CheckpointError, match="nowhere is not a folder"):
        filled.add_expert("code", elsewhere.parent / "nowhere", base="base")
    with pytest.raises(InvalidInputError, match="is a whole checkpoint: only an adapter has a base model"):
        filled.add_expert("code", zoo.experts["code"], base="base")


def test_other_base_is_refused_and_leaves_nothing(
    filled: Registry, elsewhere: Path, tmp_path: Path, tokenizer: Any
) -> None:
    wide = save_checkpoint(make_model("llama", 100, intermediate_size=96), tmp_path / "wide", tokenizer)
    with pytest.raises(CheckpointError, match="mlp"):
        filled.add_expert("tuned", elsewhere, base=wide)
    unrelated = save_checkpoint(make_model("llama", 700), tmp_path / "unrelated", tokenizer)
    with pytest.raises(IncompatibleError, match="is unrelated to every registered model"):
        filled.add_expert("tuned", elsewhere, base=unrelated)
    assert not list(filled.home.merged.glob("*"))
