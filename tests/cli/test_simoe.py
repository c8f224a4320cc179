"""Proves: reg train-simoe and reg compose --to simoe do what the library does, and say what was made."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import Registry, SimoeTraining
from tests.conftest import Zoo, files_of

TINY = SimoeTraining(
    experts=2, prompt_tokens=8, tokens=2 * 2 * 32, batch_size=2, seq_len=32, device="cpu", dtype="float32"
)


def run(registry: Registry, *words: object) -> Result:
    return CliRunner().invoke(main, ["--home", str(registry.home.path), *map(str, words)])


@pytest.mark.check
def test_simoe_is_trained_and_composed(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    data = ("--data", zoo.train["code"], "--data", zoo.train["law"])
    sizes = ("--experts", 2, "--prompt-tokens", 8, "--tokens", 2 * 2 * 32, "--batch-size", 2, "--seq-len", 32)
    words = ("train-simoe", "mine", "--base", "base", *data, *sizes, "--dtype", "float32", "--device", "cpu")
    made = run(filled, *words, "--json")
    assert made.exit_code == 0, made.output
    document = json.loads(made.stdout)
    same = filled.train_simoe("same", "base", [zoo.train["code"], zoo.train["law"]], TINY)
    assert [expert["digest"] for expert in document["experts"]] == [each.version.digest for each in same.experts]
    assert document["training"] == same.document
    assert document["sparsity"] == same.document["masks"]["sparsity"] >= 0.75
    assert document["overlap"] == same.document["masks"]["overlap"][0][1]
    again = run(filled, *words)
    assert again.stdout.startswith("trained mine in 2 steps on 128 tokens; registered mine-1@1 to mine-2@1\n  masks: ")
    assert "compose --experts mine-1@1,mine-2@1 --to simoe --out moe/" in again.stderr.splitlines()[-1]
    assert "expert 2 of 2, router on 8 prompt tokens; shared weights" in run(filled, "show", "mine-2").stdout
    experts = ("--experts", "mine-1,mine-2", "--to", "simoe")
    planned = run(filled, "compose", *experts, "--plan")
    assert planned.exit_code == 0, planned.output
    assert "trained by all 2 experts together, whichever of them are members" in planned.stdout
    saved = tmp_path / "recipe.yaml"
    composed = run(filled, "compose", *experts, "--out", tmp_path / "out", "--save-recipe", saved)
    assert composed.exit_code == 0, composed.output
    assert "simoe_llama" in composed.stdout
    repeated = run(filled, "compose", "--recipe", saved, "--out", tmp_path / "repeated")
    assert repeated.exit_code == 0, repeated.output
    assert files_of(tmp_path / "out") == files_of(tmp_path / "repeated")
    shown = run(filled, "show", json.loads((tmp_path / "out" / "composition.json").read_bytes())["digest"])
    assert shown.exit_code == 0, shown.output
    listed = run(filled, "compositions", "mine-1").stdout.splitlines()
    assert listed[-1].rstrip().endswith("  simoe")
    receipt = tmp_path / "receipt.json"
    gone = run(filled, "opt-out", "mine-1", "--yes", "--receipt", receipt)
    assert "trained together with mine-2@1, same-1@1, same-2@1" in gone.stdout
    assert run(filled, "receipt", "verify", receipt).exit_code == 0
    refused = run(filled, "compose", "--experts", "code", "--to", "simoe", "--out", tmp_path / "late")
    assert refused.exit_code == 1
    assert "code@1 was not trained with others as one SIMoE" in refused.stderr
    assert "reg train-simoe" in refused.stderr


def test_wrong_options_are_refused(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    base = ("train-simoe", "mine", "--base", "base", "--data", zoo.train["code"])
    compose = ("compose", "--experts", "code", "--to", "simoe", "--out", tmp_path / "out")
    for words, code, message in (
        ((*base, "--sparsity", 1), 1, "sparsity is 1.0, it must be from 0 to below 1"),
        ((*base, "--experts", 1, "--overlap", 0.5), 1, "one mask has no other to overlap with"),
        ((*base, "--experts", 0), 2, "0 is not in the range"),
        ((*base, "--prompt-tokens", 256), 1, "a window has 256 tokens: none is left to predict"),
        ((*base[:2], "--base", "absent", *base[4:]), 1, "absent"),
        ((*compose, "--router", "ridge"), 2, "--router has no part in what --to simoe makes"),
        ((*compose, "--weights", "code=2"), 2, "--weights has no part in what --to simoe makes"),
    ):
        result = run(filled, *words)
        assert result.exit_code == code, result.output
        assert message in result.stderr
    assert not (tmp_path / "out").exists()
