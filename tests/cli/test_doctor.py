"""Proves: reg doctor prints its verdict first and one next command last, and exits 1 where the folder is broken."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.commands.doctor import print_diagnosis
from cli.json_schema.commands import schema_of
from cli.main import main
from registry import Registry
from registry.doctor import Diagnosis, Finding
from tests.cli.test_json import validate
from tests.conftest import Zoo
from tests.registry.doctor.broken import ROUTER, fill, truncated_shard


def run(home: Path, *arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["--home", str(home), *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def moe(filled: Registry, tmp_path: Path) -> Path:
    filled.compose(["code", "math"], tmp_path / "moe")
    return tmp_path / "moe"


@pytest.mark.check
def test_verdict_findings_next(filled: Registry, moe: Path) -> None:
    fill(ROUTER, float("nan"))(moe)
    result = run(filled.home.path, "doctor", moe, code=1)
    first, *lines = result.stdout.splitlines()
    assert first == f"{moe} is broken: layer 1's router is NaN ({ROUTER})"
    assert lines[0] == f"  error   values: layer 1's router is NaN ({ROUTER})"
    assert lines[1] == "  warning integrity: model.safetensors was changed since it was composed"
    assert "  ok      files: config.json and all weight files are there and whole" in lines
    assert lines[-1].startswith("  skipped loads, logits, routing, ")
    assert lines[-1].endswith("; --every-check says why")
    every = run(filled.home.path, "doctor", moe, "--every-check", code=1).stdout.splitlines()
    assert "  skipped loads: values has an error, which comes first" in every
    assert [line for line in every if "  skipped " not in line] == [first, *lines[:-1]]
    on = f"reg --home {filled.home.path} compose"
    assert result.stderr.splitlines()[-1] == f"  next: {on} --recipe {moe}/composition.json --out {moe}-again"
    assert run(filled.home.path, "--quiet", "doctor", moe, code=1).stdout == f"{first}\n"


def test_every_finding_is_in_the_json(filled: Registry, moe: Path) -> None:
    found = json.loads(run(filled.home.path, "doctor", moe, "--quick", "--json").stdout)
    validate(found, schema_of("reg doctor"))
    assert (found["healthy"], found["perplexity"], found["folder"]) == (True, {}, str(moe))
    assert {finding["severity"] for finding in found["findings"]} == {"ok", "skipped"}
    truncated_shard(moe)
    found = json.loads(run(filled.home.path, "--json", "doctor", moe, "--quick", code=1).stdout)
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
    result = run(tmp_path / "nowhere", "doctor", zoo.experts["code"], "--quick")
    assert result.stdout.startswith(f"{zoo.experts['code']} looks healthy: ")
    assert result.stderr.startswith("without a registry: ")
    assert not (tmp_path / "nowhere").exists()


def test_wrong_requests(zoo: Zoo, tmp_path: Path) -> None:
    result = run(tmp_path, "doctor", tmp_path / "absent", code=1)
    assert f"{tmp_path / 'absent'} is not a folder" in result.stderr
    assert result.stdout == ""
    run(tmp_path, "doctor", zoo.experts["code"], "--data", "code", code=2)
    assert "is not a file" in run(tmp_path, "doctor", zoo.experts["code"], "--data", "a=b.txt", code=1).stderr


@pytest.mark.check
def test_compose_checks_what_it_wrote(filled: Registry, tmp_path: Path) -> None:
    """Random models are worse than guessing, which is an error."""
    out = tmp_path / "random"
    result = run(filled.home.path, "compose", "--experts", "code,math", "--out", out, "--check", code=1)
    assert result.stdout.startswith("composed code@1, math@1 into ")
    assert f"\n{out} is broken: it predicts the members' kept text worse than guessing: " in result.stdout
    assert "the member is broken itself" in result.stdout
    assert (out / "composition.json").is_file()
    again = run(
        filled.home.path, "compose", "--experts", "code,math", "--out", out, "--force", "--check", "--json", code=1
    )
    found = json.loads(again.stdout)
    validate(found, schema_of("reg compose"))
    assert found["check"]["healthy"] is False
    shutil.rmtree(out)
    run(filled.home.path, "compose", "--experts", "code,math", "--plan", "--check", code=2)


def test_an_interrupted_examination_leaves_what_was_written(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Registry, "doctor", interrupted)
    out, recipe = tmp_path / "checked", tmp_path / "recipe.yaml"
    words = ("compose", "--experts", "code,math", "--check", "--out", out, "--save-recipe", recipe)
    result = run(filled.home.path, *words, code=130)
    again = json.loads(run(filled.home.path, "compose", "--recipe", recipe, "--plan", "--json").stdout)
    assert again["digest"] == json.loads((out / "composition.json").read_text())["digest"]
    assert result.stdout.startswith(f"composed code@1, math@1 into {out}")
    assert f"error: {out} is written; its examination was interrupted\n" in result.stderr
    assert result.stderr.endswith(f"doctor {out}\n")
    assert (out / "composition.json").is_file()


def test_the_next_command_names_the_registry_that_was_named(filled: Registry, tmp_path: Path) -> None:
    filled.compose(["code", "math"], tmp_path / "moe")
    home = str(filled.home.path)
    result = CliRunner().invoke(main, ["--home", home, "doctor", str(tmp_path / "moe"), "--quick"])
    assert result.exit_code == 0, result.output
    (line,) = (line for line in result.stderr.splitlines() if "next:" in line)
    assert f"reg --home {home} " in line
    result = CliRunner().invoke(main, ["doctor", str(tmp_path / "moe"), "--quick"], env={"REG_HOME": home})
    assert "--home" not in result.output
