"""Proves: what training programs put around a model is taken away with a remark, and no tensor is dropped in silence.

A head that config.json calls tied and that is another than the embedding stays; settings of a quantization that was
merged since are left out; names of wrapped models are read as plain ones. A folder that is plain is not copied.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from registry import PassSettings, Registry
from registry.checkpoint import Checkpoint, hash_checkpoint
from registry.checkpoint.open import open_checkpoint
from registry.errors import CheckpointError
from tests.conftest import Zoo
from tests.models import logits, make_model, save_checkpoint
from tests.registry.checkpoint.changes import config, renamed, weights
from tests.remarks import Remarks

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
SETTINGS = PassSettings(tokens=64, seq_len=32, batch_size=2)
BUFFER = "model.layers.0.self_attn.rotary_emb.inv_freq"


@contextmanager
def opened(folder: Path, told: Remarks | None = None) -> Iterator[Checkpoint]:
    """Open a folder, with its neighbour `scratch` for copies."""
    with open_checkpoint(folder, folder.with_name("scratch"), progress=told or Remarks()) as checkpoint:
        yield checkpoint


def digest_of(checkpoint: Checkpoint) -> str:
    return hash_checkpoint(checkpoint, Remarks()).weights


@pytest.fixture
def tied(tmp_path: Path, tokenizer: Any) -> Path:
    return save_checkpoint(make_model("llama", 101, tie_word_embeddings=True), tmp_path / "tied", tokenizer)


def test_a_plain_folder_is_opened_where_it_is(bare: Path, tied: Path) -> None:
    """So is one with a head that equals the embedding."""
    before = digest_of(Checkpoint(tied))
    weights(lambda t: t.update({HEAD: t[EMBEDDING]}))(tied)
    told = Remarks()
    with opened(bare, told) as checkpoint:
        assert checkpoint.folder == bare
    with opened(tied, told) as checkpoint:
        assert checkpoint.folder == tied
        assert digest_of(checkpoint) == before
    assert told.sentences == []
    assert not bare.with_name("scratch").exists()


def test_a_trained_head_is_kept_where_config_calls_it_tied(
    tied: Path, zoo: Zoo, tmp_path: Path, registry: Registry
) -> None:
    """Its statistics, its versions and its compositions are of the head in its files."""
    head = torch.randn(320, 32, generator=torch.Generator().manual_seed(3))
    without = shutil.copytree(tied, tmp_path / "without")
    plain = registry.add_base("plain", tied).version
    weights(lambda t: t.update({HEAD: head}))(tied)
    registry.progress = told = Remarks()
    version = registry.add_expert("code", tied, data=[zoo.train["code"]], settings=SETTINGS).version
    assert f"{tied}: by config.json the head is the embedding, and {HEAD} in its files is another" in told.text
    assert version.content is not None
    assert plain.content is not None
    assert version.content["weights"] != plain.content["weights"]
    assert not version.content["architecture"]["tie_word_embeddings"]
    registry.export("code", tmp_path / "out")
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")[HEAD], head)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    ids = torch.arange(1, 20)[None]
    assert not torch.allclose(logits(tmp_path / "out", ids), logits(without, ids), atol=1e-3)
    assert list(registry.home.merged.iterdir()) == []


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
def test_names_of_a_wrapped_model_are_read_as_plain_ones(bare: Path, case: str) -> None:
    before, told = digest_of(Checkpoint(bare)), Remarks()
    renamed(WRAPPED[case])(bare)
    with pytest.raises(CheckpointError, match="missing from its safetensors files"):
        Checkpoint(bare)
    with opened(bare, told) as checkpoint:
        assert digest_of(checkpoint) == before
        assert checkpoint.label == str(bare)
        assert (checkpoint.folder / "tokenizer.json").read_bytes() == (bare / "tokenizer.json").read_bytes()
    assert "tensors have names of another form" in told.text
    assert list(bare.with_name("scratch").iterdir()) == []


@pytest.mark.parametrize("left", [{"quant_method": "bitsandbytes", "load_in_4bit": True}, None], ids=["left", "null"])
def test_settings_of_a_quantization_that_was_merged_are_left_out(
    bare: Path, zoo: Zoo, tmp_path: Path, registry: Registry, left: Any
) -> None:
    before = digest_of(Checkpoint(bare))
    config(quantization_config=left)(bare)
    registry.progress = told = Remarks()
    version = registry.add_expert("code", bare, data=[zoo.train["code"]], settings=SETTINGS).version
    assert version.content is not None
    assert version.content["weights"] == before
    assert "its weights are not quantized" in told.text
    registry.export("code", tmp_path / "out")
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())


def test_what_no_remark_can_mend_is_refused(bare: Path, tied: Path) -> None:
    """Two tensors of one name, and weights without values, whose message names the program that left them."""
    weights(lambda t: t.update({f"module.{HEAD}": t[HEAD], f"module.{EMBEDDING}": t.pop(EMBEDDING)}))(bare)
    with pytest.raises(CheckpointError, match=r"several tensors are lm_head\.weight without"), opened(bare):
        pass
    weights(lambda t: t.update({HEAD: torch.zeros(0)}))(tied)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is empty: .* ZeRO-3") as caught, opened(tied):
        pass
    assert "stage3_gather_16bit_weights_on_model_save" in str(caught.value.hint)


def test_what_is_not_used_of_a_folder_is_named(bare: Path) -> None:
    before, told = digest_of(Checkpoint(bare)), Remarks()
    weights(lambda t: t.update({BUFFER: torch.ones(4)}))(bare)
    (bare / "consolidated.safetensors").write_bytes((bare / "model.safetensors").read_bytes())
    with opened(bare, told) as checkpoint:
        assert digest_of(checkpoint) == before
    assert told.sentences == [
        f"{bare}: {BUFFER} is not used: buffers are computed from config.json",
        f"{bare}: consolidated.safetensors is not read: no part of the model that config.json describes",
    ]


def test_code_and_files_of_other_programs_are_named(bare: Path) -> None:
    """A model that brings its own code is read as its family, and that is said."""
    config(auto_map={"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"})(bare)
    (bare / "tekken.json").write_text("{}")
    (bare / "additional_chat_templates").mkdir()
    told = Remarks()
    with opened(bare, told):
        pass
    assert told.sentences == [
        f"{bare}: its own code (auto_map in config.json) is not run: it is read as LlamaForCausalLM",
        f"{bare}: additional_chat_templates, tekken.json are not taken over, as transformers does not read them",
    ]


def test_of_several_calibration_files_the_first_is_read_and_that_is_said(
    bare: Path, zoo: Zoo, registry: Registry
) -> None:
    for name in ("calibration.jsonl", "calibration.txt"):
        (bare / name).write_bytes(zoo.train["code"].read_bytes())
    registry.progress = told = Remarks()
    registry.add_expert("code", bare, settings=SETTINGS)
    assert "calibration.txt is read, and calibration.jsonl is not: name all files with --data" in told.sentences


def test_a_window_longer_than_the_model_reads_is_shortened_and_that_is_said(
    bare: Path, zoo: Zoo, registry: Registry
) -> None:
    registry.progress = told = Remarks()
    registry.add_expert("code", bare, data=[zoo.train["code"]], settings=replace(SETTINGS, seq_len=4096))
    assert "windows have 128 tokens, not 4096: the model reads no more at once" in told.sentences
