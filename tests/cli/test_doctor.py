"""Proves: reg doctor prints its verdict first and one next command last, and exits 1 where the folder is broken."""

import json
from pathlib import Path

import pytest

from cli.commands.doctor import print_diagnosis
from cli.json_schema.commands import schema_of
from registry import Registry
from registry.doctor import Diagnosis, Finding
from tests.cli.conftest import PAIR, Reg
from tests.cli.test_json import validate
from tests.conftest import Zoo
from tests.registry.doctor.broken import ROUTER, fill, truncated_shard


@pytest.fixture
def moe(filled: Registry, tmp_path: Path) -> Path:
    filled.compose(["code", "math"], tmp_path / "moe")
    return tmp_path / "moe"


@pytest.mark.check
def test_verdict_findings_next(reg: Reg, moe: Path) -> None:
    fill(ROUTER, float("nan"))(moe)
    result = reg("doctor", moe, code=1)
    first, *lines = result.stdout.splitlines()
    assert first == f"{moe} is broken: layer 1's router is NaN ({ROUTER})"
    assert lines[0] == f"  error   values: layer 1's router is NaN ({ROUTER})"
    assert lines[1] == "  warning integrity: model.safetensors was changed since it was composed"
    assert "  ok      files: config.json and all weight files are there and whole" in lines
    assert lines[-1].startswith("  skipped loads, logits, routing, ")
    assert lines[-1].endswith("; --every-check says why")
    every = reg("doctor", moe, "--every-check", code=1).stdout.splitlines()
    assert "  skipped loads: values has an error, which comes first" in every
    assert [line for line in every if "  skipped " not in line] == [first, *lines[:-1]]
    on = f"reg --home {reg.home} compose"
    assert result.stderr.splitlines()[-1] == f"  next: {on} --recipe {moe}/composition.json --out {moe}-again"
    assert reg("--quiet", "doctor", moe, code=1).stdout == f"{first}\n"


def test_every_finding_is_in_the_json(reg: Reg, moe: Path) -> None:
    found = reg.json("doctor", moe, "--quick")
    validate(found, schema_of("reg doctor"))
    assert (found["healthy"], found["perplexity"], found["folder"]) == (True, {}, str(moe))
    assert {finding["severity"] for finding in found["findings"]} == {"ok", "skipped"}
    truncated_shard(moe)
    found = reg.json("doctor", moe, "--quick", code=1)
    validate(found, schema_of("reg doctor"))
    assert [one["check"] for one in found["findings"] if one["severity"] == "error"] == ["files"]


def test_as_many_lines_say_ok_as_checks_passed(capsys: pytest.CaptureFixture[str]) -> None:
    said = [("keys", "names fit"), ("generation", "it writes a"), ("generation", "it writes b"), ("loads", "it loads")]
    findings = tuple(Finding("ok", message, check=check) for check, message in said)
    print_diagnosis(Diagnosis(Path("moe"), findings))
    assert capsys.readouterr().out.splitlines() == [
        "moe looks healthy: 3 checks passed",
        "  ok      keys: names fit",
        "  ok      generation: it writes a",
        "                      it writes b",
        "  ok      loads: it loads",
    ]


def test_no_registry_is_needed(zoo: Zoo, tmp_path: Path) -> None:
    result = Reg(tmp_path / "nowhere")("doctor", zoo.experts["code"], "--quick")
    assert result.stdout.startswith(f"{zoo.experts['code']} looks healthy: ")
    assert result.stderr.startswith("without a registry: ")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.check
def test_compose_checks_what_it_wrote(reg: Reg, tmp_path: Path) -> None:
    """Random models are worse than guessing, which is an error."""
    out = tmp_path / "random"
    result = reg("compose", *PAIR, "--out", out, "--check", code=1)
    assert result.stdout.startswith("composed code@1, math@1 into ")
    assert f"\n{out} is broken: it predicts the members' kept text worse than guessing: " in result.stdout
    assert "the member is broken itself" in result.stdout
    assert (out / "composition.json").is_file()
    found = reg.json("compose", *PAIR, "--out", out, "--force", "--check", code=1)
    validate(found, schema_of("reg compose"))
    assert found["check"]["healthy"] is False
    reg("compose", *PAIR, "--plan", "--check", code=2)


def test_an_interrupted_examination_leaves_what_was_written(
    reg: Reg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Registry, "doctor", interrupted)
    out, recipe = tmp_path / "checked", tmp_path / "recipe.yaml"
    result = reg("compose", *PAIR, "--check", "--out", out, "--save-recipe", recipe, code=130)
    again = reg.json("compose", "--recipe", recipe, "--plan")
    assert again["digest"] == json.loads((out / "composition.json").read_text())["digest"]
    assert result.stdout.startswith(f"composed code@1, math@1 into {out}")
    assert f"error: {out} is written; its examination was interrupted\n" in result.stderr
    assert result.stderr.endswith(f"doctor {out}\n")
