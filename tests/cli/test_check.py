"""Proves: reg check says what registering would, registers nothing; hosts and modelling files are chosen by option."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import Registry
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint, sentences, write_jsonl


@pytest.fixture
def home(filled: Registry) -> Path:
    return filled.home.path


def run(home: Path, *arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["--home", str(home), *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def test_check_prints_what_there_is_to_know(home: Path, zoo: Zoo, bare: Path) -> None:
    lines = run(home, "check", zoo.experts["code"]).stdout.splitlines()
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
    without = run(home, "check", bare).stdout
    assert "not known: give its text with --data" in without


def test_check_as_json(home: Path, zoo: Zoo) -> None:
    found = json.loads(run(home, "check", zoo.experts["math"], "--json").stdout)
    assert found["family"] == "llama"
    assert found["relations"][0]["ref"] == "math@1"
    assert found["relations"][0]["verdict"] == "same weights"
    assert len(found["relations"][0]["tensors"]) == 21
    assert found["overlaps"][0]["routing"] == pytest.approx(1.0)
    assert set(found["overlaps"][0]["layers"][0]) == {"layer", "distance", "routing", "subspace"}


def test_check_registers_nothing_and_refuses_as_registering_does(home: Path, tmp_path: Path, tokenizer: Any) -> None:
    before = run(home, "log", "--json").stdout
    stranger = save_checkpoint(make_model("llama", 701), tmp_path / "stranger", tokenizer)
    refused = run(home, "check", stranger, code=1)
    assert "is unrelated to every registered model of its shape" in refused.stderr
    taken = run(home, "check", stranger, "--allow-unrelated").stdout
    assert "unrelated to " in taken
    assert run(home, "log", "--json").stdout == before


def test_nothing_to_compare_with_is_said(tmp_path: Path, bare: Path) -> None:
    assert "no registered version has this shape" in run(tmp_path / "empty", "check", bare).stdout


def test_show_has_the_distances(home: Path) -> None:
    shown = run(home, "show", "code").stdout.splitlines()
    distances = [line.split(maxsplit=1)[1] for line in shown if line.startswith("weights")]
    assert len(distances) == 1
    assert re.match(r"same base as base@1 \(distance 0\.\d{3}\), .* and 1 more$", distances[0])
    found = json.loads(run(home, "show", "code", "--json").stdout)["relations"]
    assert found[0]["ref"] == "base@1"


@pytest.fixture
def qwen2(tmp_path: Path, tokenizer: Any) -> Path:
    """A home with two Qwen2 experts."""
    data = write_jsonl(tmp_path / "data.jsonl", sentences("code", 20))
    for seed, name in enumerate(("base", "code", "math")):
        folder = save_checkpoint(make_model("qwen2", 100 + seed), tmp_path / name, tokenizer)
        if seed:
            run(tmp_path / "home", "add-expert", name, folder, "--data", data, "--tokens", 128, "--seq-len", 32)
    return tmp_path / "home"


@pytest.mark.check
def test_host_is_chosen_where_there_are_several(qwen2: Path, tmp_path: Path) -> None:
    for host, expected in ((None, "qwen2_moe"), ("granitemoe", "granitemoe"), ("qwen2_moe", "qwen2_moe")):
        option = ["--host", host] if host else []
        run(qwen2, "compose", "--experts", "code,math", "--out", tmp_path / f"moe-{host}", *option)
        config = json.loads((tmp_path / f"moe-{host}" / "config.json").read_text())
        assert config["model_type"] == expected
    default, named = (tmp_path / "moe-None", tmp_path / "moe-qwen2_moe")
    assert all(path.read_bytes() == (named / path.name).read_bytes() for path in default.iterdir())
    refused = run(qwen2, "compose", "--experts", "code", "--out", tmp_path / "moe", "--host", "mixtral", code=1)
    assert "host 'mixtral' does not carry code@1 (qwen2)" in refused.stderr
    assert "those that do: qwen2_moe, granitemoe, remote-code" in refused.stderr
    both = run(qwen2, "compose", "--experts", "code", "--plan", "--host", "granitemoe", "--remote-code", code=2)
    assert "exclude one another" in both.stderr


def test_modelling_file_travels_only_where_it_is_asked_for(tmp_path: Path, tokenizer: Any) -> None:
    home, folder = tmp_path / "home", save_checkpoint(make_model("gpt_neox", 101), tmp_path / "neox", tokenizer)
    data = write_jsonl(tmp_path / "data.jsonl", sentences("code", 20))
    settings = ("--data", data, "--tokens", 128, "--seq-len", 32)
    assert "--remote-code" in run(home, "add-expert", "code", folder, *settings, code=1).stderr
    run(home, "add-expert", "code", folder, *settings, "--remote-code")
    refused = run(home, "compose", "--experts", "code", "--out", tmp_path / "moe", code=1)
    assert "no native host carries code@1 exactly: its MLP is not gated" in refused.stderr
    run(home, "compose", "--experts", "code", "--out", tmp_path / "moe", "--remote-code")
    source = (tmp_path / "moe" / "modeling_routed.py").read_text()
    assert "from transformers import GPTNeoXForCausalLM as DenseForCausalLM" in source
    assert 'LAYERS = "gpt_neox.layers"' in source
    card = (tmp_path / "moe" / "README.md").read_text()
    assert "trust_remote_code=True" in card


@pytest.mark.check
def test_what_the_host_changes_is_noted(tmp_path: Path, tokenizer: Any) -> None:
    home, data = tmp_path / "home", write_jsonl(tmp_path / "data.jsonl", sentences("code", 20))
    model = make_model("olmo3", 101, num_hidden_layers=4, sliding_window=32)
    folder = save_checkpoint(model, tmp_path / "olmo3", tokenizer)
    run(home, "add-expert", "code", folder, "--data", data, "--tokens", 128, "--seq-len", 32)
    note = "flex_olmo has no sliding window: the context ends at 32 tokens (the experts' is 128)"
    assert note in run(home, "compose", "--experts", "code", "--plan").stdout
    assert f"note: {note}" in run(home, "compose", "--experts", "code", "--out", tmp_path / "moe").stdout
    assert note in (tmp_path / "moe" / "README.md").read_text()
    assert note in run(home, "check", folder).stdout
    assert json.loads((tmp_path / "moe" / "config.json").read_text())["max_position_embeddings"] == 32
