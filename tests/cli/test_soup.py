"""Proves: reg train-soup and reg instantiate do what the library does, and say what was made."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import Registry, SoupTraining
from tests.conftest import Zoo, files_of

TINY = SoupTraining(experts=2, tokens=2 * 2 * 32, batch_size=2, seq_len=32, device="cpu", dtype="float32")


def run(registry: Registry, *words: object) -> Result:
    return CliRunner().invoke(main, ["--home", str(registry.home.path), *map(str, words)])


@pytest.mark.check
def test_soup_is_trained_and_instantiated(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    domains = ("--domains", zoo.train["code"], "--domains", f"law={zoo.train['law']}")
    training = ("--experts", 2, "--tokens", 2 * 2 * 32, "--batch-size", 2, "--seq-len", 32, "--dtype", "float32")
    words = ("train-soup", "mine", "--base", "base", *domains, *training, "--device", "cpu")
    made = run(filled, *words, "--json")
    assert made.exit_code == 0, made.output
    document = json.loads(made.stdout)
    same = filled.train_soup("same", "base", {"code": [zoo.train["code"]], "law": [zoo.train["law"]]}, TINY)
    assert document["shared"]["digest"] == same.shared.version.digest
    assert document["training"] == same.document
    assert [expert["ref"] for expert in document["experts"]] == ["mine-1@1", "mine-2@1"]
    again = run(filled, *words)
    assert again.stdout.startswith("trained mine in 2 steps on 128 tokens; registered mine@1")
    assert "experts mine-1@1 to mine-2@1; domains code, law" in again.stdout
    assert "shared weights of 2 experts; domains code, law: reg instantiate" in run(filled, "show", "mine").stdout
    assert "trained together with all of it" in run(filled, "show", "mine-2").stdout
    result = run(filled, "instantiate", "mine", "--weights", "code=1,law=3", "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    expected = filled.instantiate("mine", tmp_path / "expected", weights={"code": 0.25, "law": 0.75})
    assert files_of(tmp_path / "out") == files_of(tmp_path / "expected")
    assert (found["digest"], found["domain_weights"]) == (expected.plan.digest, {"code": 0.25, "law": 0.75})
    shown = run(filled, "instantiate", "mine", "--like", zoo.test["law"], "--out", tmp_path / "like")
    assert shown.exit_code == 0, shown.output
    assert "\n  domains: code " in shown.stdout
    assert "\n  coefficients: mine-1 " in shown.stdout
    short = ("--fit-tokens", 1280, "--fit-steps", 1, "--fit-device", "cpu", "--out", tmp_path / "fit")
    fitted = run(filled, "instantiate", "mine", "--fit", zoo.test["law"], *short)
    assert fitted.exit_code == 0, fitted.output
    assert "\n  loss on held-out text " in fitted.stdout
    assert " with equal coefficients, " in fitted.stdout
    gone = run(filled, "opt-out", "mine-1", "--yes")
    assert "trained together with mine@1, mine-2@1, same@1, " in gone.stdout
    refused = run(filled, "instantiate", "mine", "--weights", "code=1", "--out", tmp_path / "late")
    assert refused.exit_code == 1
    assert "mine-1 of the soup mine@1 was opted out" in refused.stderr


def test_wrong_options_are_refused(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    base = ("train-soup", "mine", "--base", "base", "--experts", 2)
    for words, message in (
        (
            (*base, "--domains", zoo.train["code"], "--domains", zoo.train["code"]),
            "two files would be the domain 'code'",
        ),
        ((*base, "--domains", zoo.train["code"], "--clusters", 1), "--clusters: "),
        ((*base, "--domains", "=x"), "'=x' is not of the form FILE or NAME=FILE"),
        (("instantiate", "base", "--weights", "code=x", "--out", tmp_path / "out"), "the weight of code is 'x'"),
        (("instantiate", "base", "--fit-steps", 3, "--out", tmp_path / "out"), "--fit-steps is for --fit"),
    ):
        result = run(filled, *words)
        assert result.exit_code == 2, result.output
        assert message in result.stderr
    domains = ("--domains", zoo.train["code"], "--domains", zoo.train["law"])
    result = run(filled, "train-soup", "mine", "--base", "math", "--experts", 2, *domains)
    assert result.exit_code == 1
    assert "error: math is an expert, not a base model\n  next: reg list --kind base" in result.stderr


def test_help_names_only_its_own_options() -> None:
    told = CliRunner().invoke(main, ["instantiate", "--help"]).stdout
    assert "--to" not in re.findall(r"--[a-z-]+", told)
    assert "--trunk" not in told
