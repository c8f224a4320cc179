"""Proves: an adapter is read by PEFT's names whatever a training program left in them, and misfits name their cause."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from registry.checkpoint import Checkpoint
from registry.checkpoint.adapter import Adapter, merge_adapter
from registry.errors import CheckpointError
from registry.progress import silent
from tests.conftest import Zoo, files_of
from tests.models import make_model, save_checkpoint

Q = "base_model.model.model.layers.0.self_attn.q_proj"
EMBEDDING = "base_model.model.model.embed_tokens.weight"
HEAD = "base_model.model.lm_head.weight"
WEIGHTS = "adapter_model.safetensors"


def adapter_of(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    """Write an adapter."""
    folder.mkdir(exist_ok=True)
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    save_file(tensors, folder / WEIGHTS)
    return folder


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def factors() -> dict[str, torch.Tensor]:
    return {f"{Q}.lora_A.weight": random(2, 32), f"{Q}.lora_B.weight": random(32, 2, seed=1)}


@pytest.fixture(scope="module")
def base(zoo: Zoo) -> Checkpoint:
    return Checkpoint(zoo.base)


NAMES: dict[str, Callable[[str], str]] = {
    "adapter's name": lambda name: name.replace(".weight", ".default.weight"),
    "another's": lambda name: name.replace(".weight", ".my-run.weight"),
    "compiled": lambda name: f"_orig_mod.{name}",
    "layer compiled": lambda name: name.replace("layers.0.", "layers.0._orig_mod."),
    "distributed": lambda name: f"module.{name.replace('.weight', '.default.weight')}",
}


@pytest.mark.parametrize("case", NAMES)
def test_names_are_those_that_peft_gives(base: Checkpoint, tmp_path: Path, case: str) -> None:
    plain = adapter_of(tmp_path / "plain", factors())
    merge_adapter(Adapter(plain), base, tmp_path / "expected", silent)
    named = Adapter(adapter_of(tmp_path / "named", {NAMES[case](name): value for name, value in factors().items()}))
    merge_adapter(named, base, tmp_path / "found", silent)
    assert files_of(tmp_path / "found") == files_of(tmp_path / "expected")
    assert len(named.notes) == 1
    assert named.notes[0].startswith("2 of 2 tensors have names of another form: ")
    assert Adapter(plain).notes == []


def test_modules_saved_by_name_are_the_ones_trained(base: Checkpoint, tmp_path: Path) -> None:
    norm = "base_model.model.model.norm"
    tensors = {f"{norm}.modules_to_save.default.weight": random(32), f"{norm}.original_module.weight": random(32)}
    opened = Adapter(adapter_of(tmp_path / "a", factors() | tensors, modules_to_save=["norm"]))
    merge_adapter(opened, base, tmp_path / "found", silent)
    found = load_file(tmp_path / "found" / "model.safetensors")
    assert torch.equal(found["model.norm.weight"], random(32))
    assert f"{norm}.original_module.weight is not used" in "\n".join(opened.notes)


REFUSED: dict[str, tuple[dict[str, torch.Tensor], str]] = {
    "two adapters": (
        {name.replace(".weight", f".{run}.weight"): value for run in ("a", "b") for name, value in factors().items()},
        "has several adapters: a, b",
    ),
    "one name twice": (
        factors() | {f"{Q}.lora_A.default.weight": random(2, 32)},
        "several tensors are .*lora_A.weight",
    ),
    "empty": (
        {name: torch.zeros(0) for name in factors()},
        "lora_A.weight, .*lora_B.weight are empty: it was saved under DeepSpeed ZeRO-3",
    ),
    "fewer rows than tokens": (
        {EMBEDDING: random(300, 32), HEAD: random(300, 32)},
        "embed_tokens.weight has 300 rows, the base's table 320, and 320 tokens need one",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_merged_names_its_cause(base: Checkpoint, tmp_path: Path, case: str) -> None:
    tensors, message = REFUSED[case]
    with pytest.raises(CheckpointError, match=message) as caught:
        Adapter(adapter_of(tmp_path / "a", tensors)).check(base)
    assert "base model that the adapter was trained on" not in str(caught.value.hint)


@pytest.mark.parametrize("head", [True, False], ids=["both tables", "the embedding"])
def test_rows_that_no_token_has_stay_the_bases(tmp_path: Path, tokenizer: Any, head: bool) -> None:
    """The base's tables are padded, and the adapter's have the tokens alone."""
    folder = save_checkpoint(make_model("llama", 100, vocab_size=384), tmp_path / "base", tokenizer)
    tables = {EMBEDDING: random(330, 32)} | ({HEAD: random(330, 32, seed=1)} if head else {})
    adapter = Adapter(adapter_of(tmp_path / "a", factors() | tables))
    merge_adapter(adapter, Checkpoint(folder), tmp_path / "found", silent)
    before, found = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "found"))
    for name, table in tables.items():
        own = name.removeprefix("base_model.model.")
        assert torch.equal(found[own][:330], table)
        assert torch.equal(found[own][330:], before[own][330:])
    assert "330 rows, the base's table 384: the last 54, which no token has, stay the base's" in adapter.notes[0]
    assert json.loads((tmp_path / "found" / "config.json").read_text())["vocab_size"] == 384
