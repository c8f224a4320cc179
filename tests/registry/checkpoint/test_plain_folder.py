"""Proves: what training programs put around a model is taken away with a remark, and no tensor is dropped in silence.

A head that config.json calls tied and that is another than the embedding stays; settings of a quantization that was
merged since are left out; names of wrapped models are read as plain ones. A folder that is plain is not copied.
"""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from registry import Registry
from registry.checkpoint import Checkpoint, hash_checkpoint
from registry.checkpoint.open import open_checkpoint
from registry.errors import CheckpointError
from registry.progress import silent
from tests.conftest import SETTINGS, Zoo
from tests.models import logits, make_model, save_checkpoint
from tests.remarks import Remarks

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
Tensors = dict[str, torch.Tensor]


def rewritten(folder: Path, edit: Callable[[Tensors], Tensors], **config: Any) -> Path:
    """Change the tensors of a folder, and keys of its config.json."""
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in edit(load_file(path)).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | config))
    return folder


def opened(folder: Path, scratch: Path, stack: ExitStack, told: Remarks | None = None) -> Checkpoint:
    return stack.enter_context(open_checkpoint(folder, scratch, progress=told or silent))


def weights_of(folder: Path, scratch: Path) -> str:
    with ExitStack() as stack:
        return hash_checkpoint(opened(folder, scratch, stack), silent).weights


@pytest.fixture
def tied(tmp_path: Path, tokenizer: Any) -> Path:
    return save_checkpoint(make_model("llama", 101, tie_word_embeddings=True), tmp_path / "tied", tokenizer)


def test_a_plain_folder_is_opened_where_it_is(bare: Path, tmp_path: Path) -> None:
    told = Remarks()
    with ExitStack() as stack:
        assert opened(bare, tmp_path / "scratch", stack, told).folder == bare
    assert told.sentences == []
    assert not (tmp_path / "scratch").exists()


def test_a_head_that_equals_the_embedding_is_no_other_model(tied: Path, tmp_path: Path) -> None:
    before = weights_of(tied, tmp_path / "scratch")
    rewritten(tied, lambda t: t | {HEAD: t[EMBEDDING]})
    told = Remarks()
    with ExitStack() as stack:
        checkpoint = opened(tied, tmp_path / "scratch", stack, told)
        assert checkpoint.folder == tied
        assert hash_checkpoint(checkpoint, silent).weights == before
    assert told.sentences == []


def test_a_trained_head_is_kept_where_config_calls_it_tied(tied: Path, tmp_path: Path, registry: Registry) -> None:
    """Its statistics, its versions and its compositions are of the head in its files."""
    head = torch.randn(320, 32, generator=torch.Generator().manual_seed(3))
    plain = registry.add_base("plain", tied).version
    rewritten(tied, lambda t: t | {HEAD: head})
    told = Remarks()
    registry.progress = told
    version = registry.add_expert("code", tied, settings=SETTINGS).version
    assert f"{tied}: config.json ties the head to the embedding, and {HEAD} in its files is another" in told.text
    assert version.content is not None
    assert plain.content is not None
    assert version.content["weights"] != plain.content["weights"]
    assert not version.content["architecture"]["tie_word_embeddings"]
    registry.export("code", tmp_path / "out")
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")[HEAD], head)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    ids = torch.arange(1, 20)[None]
    assert not torch.allclose(logits(tmp_path / "out", ids), logits_of_tied(tied, ids, tmp_path), atol=1e-3)
    assert list(registry.home.merged.iterdir()) == []


def logits_of_tied(folder: Path, ids: torch.Tensor, tmp_path: Path) -> torch.Tensor:
    """Return the logits of the model without its head."""
    other = tmp_path / "without"
    other.mkdir()
    for name in ("config.json", "model.safetensors"):
        (other / name).write_bytes((folder / name).read_bytes())
    rewritten(other, lambda t: {name: tensor for name, tensor in t.items() if name != HEAD})
    return logits(other, ids)


WRAPPED = {
    "compiled": lambda name: f"_orig_mod.{name}",
    "distributed": lambda name: f"module.{name}",
    "peft": lambda name: f"base_model.model.{name}",
    "both": lambda name: f"module._orig_mod.{name}",
    "layers compiled": lambda name: name.replace("layers.1.", "layers.1._orig_mod."),
    "checkpointed": lambda name: name.replace(".mlp.", "._checkpoint_wrapped_module.mlp."),
    "sharded": lambda name: name.replace("model.layers", "_fsdp_wrapped_module.model.layers"),
    "without its own prefix": lambda name: name.removeprefix("model."),
}


@pytest.mark.parametrize("case", WRAPPED)
def test_names_of_a_wrapped_model_are_read_as_plain_ones(bare: Path, tmp_path: Path, case: str) -> None:
    before = weights_of(bare, tmp_path / "scratch")
    rewritten(bare, lambda t: {WRAPPED[case](name): tensor for name, tensor in t.items()})
    with pytest.raises(CheckpointError, match="missing from its safetensors files"):
        Checkpoint(bare)
    told = Remarks()
    with ExitStack() as stack:
        checkpoint = opened(bare, tmp_path / "scratch", stack, told)
        assert hash_checkpoint(checkpoint, silent).weights == before
        assert checkpoint.label == str(bare)
        assert (checkpoint.folder / "tokenizer.json").read_bytes() == (bare / "tokenizer.json").read_bytes()
    assert "tensors have names of another form" in told.text
    assert list((tmp_path / "scratch").iterdir()) == []


def test_two_tensors_of_one_name_are_refused(bare: Path, tmp_path: Path) -> None:
    rewritten(bare, lambda t: t | {f"module.{HEAD}": t[HEAD], f"module.{EMBEDDING}": t[EMBEDDING]})
    rewritten(bare, lambda t: {name: tensor for name, tensor in t.items() if name != EMBEDDING})
    with ExitStack() as stack, pytest.raises(CheckpointError, match=r"several tensors are lm_head\.weight without"):
        opened(bare, tmp_path / "scratch", stack)


@pytest.mark.parametrize("left", [{"quant_method": "bitsandbytes", "load_in_4bit": True}, None], ids=["left", "null"])
def test_settings_of_a_quantization_that_was_merged_are_left_out(
    bare: Path, tmp_path: Path, registry: Registry, left: Any
) -> None:
    before = weights_of(bare, tmp_path / "scratch")
    rewritten(bare, lambda t: t, quantization_config=left)
    registry.progress = told = Remarks()
    version = registry.add_expert("code", bare, settings=SETTINGS).version
    assert version.content is not None
    assert version.content["weights"] == before
    assert "its weights are not quantized" in told.text
    registry.export("code", tmp_path / "out")
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())


def test_weights_without_values_name_the_program_that_left_them(bare: Path, tmp_path: Path) -> None:
    rewritten(bare, lambda t: t | {HEAD: torch.zeros(0)})
    with ExitStack() as stack, pytest.raises(CheckpointError, match=r"lm_head\.weight is empty: .* ZeRO-3") as caught:
        opened(bare, tmp_path / "scratch", stack)
    assert "stage3_gather_16bit_weights_on_model_save" in str(caught.value.hint)


def test_what_is_not_used_of_a_folder_is_named(bare: Path, zoo: Zoo, tmp_path: Path) -> None:
    rewritten(bare, lambda t: t | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    (bare / "consolidated.safetensors").write_bytes((bare / "model.safetensors").read_bytes())
    told = Remarks()
    with ExitStack() as stack:
        opened(bare, tmp_path / "scratch", stack, told)
    assert told.sentences == [
        f"{bare}: model.layers.0.self_attn.rotary_emb.inv_freq is not used: buffers are computed from config.json",
        f"{bare}: consolidated.safetensors is not read: no part of the model that config.json describes",
    ]
