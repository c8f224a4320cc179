"""Proves: reg check says what registering would, registers nothing; hosts and modelling files are chosen by option."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Reg
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint, sentences, write_jsonl


def test_check_prints_what_there_is_to_know(reg: Reg, zoo: Zoo, bare: Path, tmp_path: Path) -> None:
    lines = reg("check", zoo.experts["code"]).stdout.splitlines()
    table = [line.split(maxsplit=1) for line in lines]
    said = {key: [text for word, text in table if word == key] for key, _ in table}
    assert said["family"] == ["llama, float32, 39,072 parameters"]
    assert said["hosts"] == ["mixtral, remote-code"]
    assert said["tokenizer"] == ["320 tokens"]
    assert said["weights"][0] == "same weights as code@1 (distance 0.000)"
    assert said["weights"][1].startswith("same base as base@1 (distance 0.")
    assert said["weights"][1].endswith("and 1 more")
    assert len(said["overlap"]) == 5  # it carries statistics
    assert said["overlap"][0] == "100% with code@1"
    assert said["text"] == ["code.train.jsonl, of the statistics in the checkpoint"]
    assert lines[-1].startswith("100% overlap of activations with code@1: a linear router can hardly separate")
    found = reg.json("check", zoo.experts["math"])
    assert (found["relations"][0]["ref"], found["relations"][0]["verdict"]) == ("math@1", "same weights")
    assert len(found["relations"][0]["tensors"]) == 21
    assert found["overlaps"][0]["routing"] == pytest.approx(1.0)
    assert "not known: give its text with --data" in reg("check", bare).stdout
    assert "no registered version has this shape" in Reg(tmp_path / "empty")("check", bare).stdout
    shown = reg("show", "code").stdout.splitlines()
    (distances,) = [line.split(maxsplit=1)[1] for line in shown if line.startswith("weights")]
    assert re.match(r"same base as base@1 \(distance 0\.\d{3}\), .* and 1 more$", distances)


def test_check_registers_nothing_and_refuses_as_registering_does(reg: Reg, tmp_path: Path, tokenizer: Any) -> None:
    before = reg("log", "--json").stdout
    stranger = save_checkpoint(make_model("llama", 701), tmp_path / "stranger", tokenizer)
    assert "is unrelated to every registered model of its shape" in reg("check", stranger, code=1).stderr
    assert "unrelated to " in reg("check", stranger, "--allow-unrelated").stdout
    assert reg("log", "--json").stdout == before


@pytest.fixture
def small(tmp_path: Path) -> tuple[object, ...]:
    """The options of a short pass over text."""
    return "--data", write_jsonl(tmp_path / "data.jsonl", sentences("code", 20)), "--tokens", 128, "--seq-len", 32


@pytest.mark.check
def test_host_is_chosen_where_there_are_several(tmp_path: Path, tokenizer: Any, small: tuple[object, ...]) -> None:
    reg = Reg(tmp_path / "home")
    reg("add-expert", "code", save_checkpoint(make_model("qwen2", 101), tmp_path / "code", tokenizer), *small)
    for host, expected in ((None, "qwen2_moe"), ("granitemoe", "granitemoe"), ("qwen2_moe", "qwen2_moe")):
        option = ["--host", host] if host else []
        reg("compose", "--experts", "code", "--out", tmp_path / f"moe-{host}", *option)
        config = json.loads((tmp_path / f"moe-{host}" / "config.json").read_text())
        assert config["model_type"] == expected
    default, named = (tmp_path / "moe-None", tmp_path / "moe-qwen2_moe")
    assert all(path.read_bytes() == (named / path.name).read_bytes() for path in default.iterdir())
    refused = reg("compose", "--experts", "code", "--out", tmp_path / "moe", "--host", "mixtral", code=1)
    assert "host 'mixtral' does not carry code@1 (qwen2)" in refused.stderr
    assert "those that do: qwen2_moe, granitemoe, remote-code" in refused.stderr


def test_modelling_file_travels_only_where_it_is_asked_for(
    tmp_path: Path, tokenizer: Any, small: tuple[object, ...]
) -> None:
    reg, folder = Reg(tmp_path / "home"), save_checkpoint(make_model("gpt_neox", 101), tmp_path / "neox", tokenizer)
    assert "--remote-code" in reg("add-expert", "code", folder, *small, code=1).stderr
    reg("add-expert", "code", folder, *small, "--remote-code")
    refused = reg("compose", "--experts", "code", "--out", tmp_path / "moe", code=1)
    assert "no native host carries code@1 exactly: its MLP is not gated" in refused.stderr
    reg("compose", "--experts", "code", "--out", tmp_path / "moe", "--remote-code")
    source = (tmp_path / "moe" / "modeling_routed.py").read_text()
    assert "from transformers import GPTNeoXForCausalLM as DenseForCausalLM" in source
    assert 'LAYERS = "gpt_neox.layers"' in source
    assert "trust_remote_code=True" in (tmp_path / "moe" / "README.md").read_text()


@pytest.mark.check
def test_what_the_host_changes_is_noted(tmp_path: Path, tokenizer: Any, small: tuple[object, ...]) -> None:
    reg, model = Reg(tmp_path / "home"), make_model("olmo3", 101, num_hidden_layers=4, sliding_window=32)
    folder = save_checkpoint(model, tmp_path / "olmo3", tokenizer)
    reg("add-expert", "code", folder, *small)
    note = "flex_olmo has no sliding window: the context ends at 32 tokens (the experts' is 128)"
    assert note in reg("compose", "--experts", "code", "--plan").stdout
    assert f"note: {note}" in reg("compose", "--experts", "code", "--out", tmp_path / "moe").stdout
    assert note in (tmp_path / "moe" / "README.md").read_text()
    assert note in reg("check", folder).stdout
    assert json.loads((tmp_path / "moe" / "config.json").read_text())["max_position_embeddings"] == 32
