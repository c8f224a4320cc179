"""Proves: soups and SIMoEs are trained, and made into models, as the library does it, and what was made is said."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from registry import Registry, SimoeTraining, SoupTraining
from tests.cli.conftest import TINY, Reg
from tests.conftest import Zoo, files_of


@pytest.mark.check
def test_soup_is_trained_and_instantiated(reg: Reg, filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    domains = ("--domains", zoo.train["code"], "--domains", f"law={zoo.train['law']}")
    words = ("train-soup", "mine", "--base", "base", *domains, "--experts", 2, "--tokens", 2 * 2 * 32, *TINY)
    document = reg.json(*words, "--dtype", "float32")
    settings = SoupTraining(experts=2, tokens=2 * 2 * 32, batch_size=2, seq_len=32, device="cpu", dtype="float32")
    same = filled.train_soup("same", "base", {"code": [zoo.train["code"]], "law": [zoo.train["law"]]}, settings)
    assert document["shared"]["digest"] == same.shared.version.digest
    assert document["training"] == same.document
    assert [expert["ref"] for expert in document["experts"]] == ["mine-1@1", "mine-2@1"]
    again = reg(*words, "--dtype", "float32").stdout
    assert again.startswith("trained mine in 2 steps on 128 tokens; registered mine@1")
    assert "experts mine-1@1 to mine-2@1; domains code, law" in again
    assert "shared weights of 2 experts; domains code, law: reg instantiate" in reg("show", "mine").stdout
    assert "trained together with all of it" in reg("show", "mine-2").stdout
    found = reg.json("instantiate", "mine", "--weights", "code=1,law=3", "--out", tmp_path / "out")
    expected = filled.instantiate("mine", tmp_path / "expected", weights={"code": 0.25, "law": 0.75})
    assert files_of(tmp_path / "out") == files_of(tmp_path / "expected")
    assert (found["digest"], found["domain_weights"]) == (expected.plan.digest, {"code": 0.25, "law": 0.75})
    shown = reg("instantiate", "mine", "--like", zoo.test["law"], "--out", tmp_path / "like").stdout
    assert "\n  domains: code " in shown
    assert "\n  coefficients: mine-1 " in shown
    short = ("--fit-tokens", 1280, "--fit-steps", 1, "--fit-device", "cpu", "--out", tmp_path / "fit")
    fitted = reg("instantiate", "mine", "--fit", zoo.test["law"], *short).stdout
    assert "\n  loss on held-out text " in fitted
    assert " with equal coefficients, " in fitted
    assert "trained together with mine@1, mine-2@1, same@1, " in reg("opt-out", "mine-1", "--yes").stdout
    refused = reg("instantiate", "mine", "--weights", "code=1", "--out", tmp_path / "late", code=1)
    assert "mine-1 of the soup mine@1 was opted out" in refused.stderr


def test_wrong_options_of_soups_are_refused(reg: Reg, zoo: Zoo, tmp_path: Path) -> None:
    code, law = zoo.train["code"], zoo.train["law"]
    train, domains = ("train-soup", "mine", "--experts", 2), ("--domains", code, "--domains", law)
    instantiate = ("instantiate", "base", "--out", tmp_path / "out")
    for words, status, message in (
        ((*train, "--base", "base", "--domains", code, "--domains", code), 2, "two files would be the domain 'code'"),
        ((*train, "--base", "base", "--domains", code, "--clusters", 1), 2, "--clusters: "),
        ((*train, "--base", "base", "--domains", "=x"), 2, "'=x' is not of the form FILE or NAME=FILE"),
        ((*instantiate, "--weights", "code=x"), 2, "the weight of code is 'x'"),
        ((*instantiate, "--fit-steps", 3), 2, "--fit-steps is for --fit"),
        ((*train, "--base", "math", *domains), 1, "math is an expert, not a base model\n  next: reg list --kind"),
    ):
        assert message in reg(*words, code=status).stderr
    told = CliRunner().invoke(main, ["instantiate", "--help"]).stdout  # which names only its own options
    assert "--to" not in re.findall(r"--[a-z-]+", told)
    assert "--trunk" not in told


@pytest.mark.check
def test_simoe_is_trained_and_composed(reg: Reg, filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    out, saved, receipt = tmp_path / "out", tmp_path / "recipe.yaml", tmp_path / "receipt.json"
    data, sizes = ("--data", zoo.train["code"], "--data", zoo.train["law"]), ("--experts", 2, "--tokens", 2 * 2 * 32)
    words = ("train-simoe", "mine", "--base", "base", *data, *sizes, "--prompt-tokens", 8, "--dtype", "float32", *TINY)
    document = reg.json(*words)
    settings = SimoeTraining(
        experts=2, prompt_tokens=8, tokens=2 * 2 * 32, batch_size=2, seq_len=32, device="cpu", dtype="float32"
    )
    same = filled.train_simoe("same", "base", [zoo.train["code"], zoo.train["law"]], settings)
    assert [expert["digest"] for expert in document["experts"]] == [each.version.digest for each in same.experts]
    assert document["training"] == same.document
    assert document["sparsity"] == same.document["masks"]["sparsity"] >= 0.75
    assert document["overlap"] == same.document["masks"]["overlap"][0][1]
    again = reg(*words)
    assert again.stdout.startswith("trained mine in 2 steps on 128 tokens; registered mine-1@1 to mine-2@1\n  masks: ")
    assert "compose --experts mine-1@1,mine-2@1 --to simoe --out moe/" in again.stderr.splitlines()[-1]
    assert "expert 2 of 2, router on 8 prompt tokens; shared weights" in reg("show", "mine-2").stdout
    assert "nearly every gate is closed" not in again.stderr
    compose = ("compose", "--experts", "mine-1,mine-2", "--to", "simoe")
    assert "trained by all 2 experts together, whichever of them are members" in reg(*compose, "--plan").stdout
    assert "simoe_llama" in reg(*compose, "--out", out, "--save-recipe", saved).stdout
    reg("compose", "--recipe", saved, "--out", tmp_path / "repeated")
    assert files_of(out) == files_of(tmp_path / "repeated")
    reg("show", json.loads((out / "composition.json").read_bytes())["digest"])
    assert reg("compositions", "mine-1").stdout.splitlines()[-1].rstrip().endswith("  simoe")
    gone = reg("opt-out", "mine-1", "--yes", "--receipt", receipt)
    assert "trained together with mine-2@1, same-1@1, same-2@1" in gone.stdout
    reg("receipt", "verify", receipt)
    refused = reg("compose", "--experts", "code", "--to", "simoe", "--out", tmp_path / "late", code=1)
    assert "code@1 was not trained with others as one SIMoE" in refused.stderr
    assert "reg train-simoe" in refused.stderr
    shut = ("train-simoe", "shut", *words[2:], "--gate-lr", 1000, "--overlap", 100)
    assert "nearly every gate is closed" in reg(*shut).stderr


def test_wrong_options_of_simoes_are_refused(reg: Reg, zoo: Zoo, tmp_path: Path) -> None:
    train = ("train-simoe", "mine", "--base", "base", "--data", zoo.train["code"])
    compose = ("compose", "--experts", "code", "--to", "simoe", "--out", tmp_path / "out")
    for begun, words, code, message in (
        (train, "--experts 0", 2, "0 is not in the range"),
        (train, "--prompt-tokens 256", 1, "a window has 256 tokens: none is left to predict"),
        (compose, "--router ridge", 2, "--router has no part in what --to simoe makes"),
    ):
        assert message in reg(*begun, *words.split(), code=code).stderr
    assert not (tmp_path / "out").exists()
