"""Proves: shells complete commands, options, choices and registered names, by click's machinery and in a real bash."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import CompletionItem, get_completion_class
from click.testing import CliRunner

import cli.shell_completion  # has what bash is answered
from cli.main import COMPLETING, main
from registry import Registry
from store.catalog import NewVersion


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog of three experts, one more that was opted out, and a base model; no arrays. Nothing writes to it."""
    place = tmp_path_factory.mktemp("completion") / "home"
    with Registry(place) as registry:
        for name, kind in (("base", "base"), ("code", "expert"), ("math", "expert"), ("mathematics", "expert")):
            registry.catalog.add_version(NewVersion(name, kind, "ab" * 32, {"n": name}, 1, ()))  # type: ignore[arg-type]
        registry.catalog.set_alias(registry.resolve("math"), "stable")
        registry.catalog.add_version(NewVersion("gone", "expert", "cd" * 32, {}, 1, ()))
        registry.opt_out("gone")
    return place


def items(shell: str, *words: str) -> list[CompletionItem]:
    """Return what the last of some words can become."""
    made = get_completion_class(shell)
    assert made is not None
    return made(main, {}, "reg", COMPLETING).get_completions([*words[:-1]], words[-1])


def completed(home: Path, line: str, shell: str = "bash") -> list[str]:
    """Return what the last word of a line, possibly empty, can become."""
    return [item.value for item in items(shell, "--home", str(home), *line.split(" "))]


WORDS = {
    "com": ["compose", "compositions", "completion"],
    "l": ["list", "log", "ls"],
    "ls --off": ["--offset"],
    "show ": ["base", "code", "gone", "math", "mathematics"],
    "show mathe": ["mathematics"],
    "show math@": ["math@1", "math@stable"],
    "show math@s": ["math@stable"],
    "opt-out ": ["base", "code", "math", "mathematics"],
    "compose --experts ": ["code", "math", "mathematics"],
    "compose --experts code,ma": ["code,math", "code,mathematics"],
    "compose --experts math,math@": ["math,math@1", "math,math@stable"],
    "compose --base ": ["base"],
    "compose --trunk ": ["regmean", "mean", "base", "ties", "dare", "task-arithmetic"],
    "compose --fit-t": ["--fit-tokens"],  # which only --help-all lists
    "compose --help": ["--help", "--help-all"],
    "completion ": ["bash", "zsh", "fish"],
    "show zzz": [],
}


@pytest.mark.sqlite
@pytest.mark.parametrize("line", sorted(WORDS))
def test_words_are_completed(home: Path, line: str) -> None:
    assert sorted(completed(home, line)) == sorted(WORDS[line])


@pytest.mark.sqlite
def test_every_shell_is_answered_wherever_the_home_stands(home: Path) -> None:
    for shell in cli.shell_completion.SHELLS:
        assert completed(home, "show c", shell) == ["code"]
        assert [item.value for item in items(shell, "show", "--home", str(home), "c")] == ["code"]
        result = CliRunner().invoke(main, ["completion", shell])  # click's own script
        assert (result.exit_code, result.stderr) == (0, "")
        assert f"{COMPLETING}={shell}_complete" in result.stdout
        assert "_reg_completion" in result.stdout


def test_folders_stand_where_a_checkpoint_does(home: Path) -> None:
    found = items("bash", "--home", str(home), "add-expert", "math", "./c")
    assert [(item.type, item.value) for item in found] == [("dir", "./c")]


@pytest.mark.parametrize("place", ["absent", "empty", "file", "other"])
def test_without_a_registry_nothing_is_said_or_made(
    tmp_path: Path, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    if place == "file":
        home.write_text("x")
    elif place != "absent":
        home.mkdir()
    if place == "other":
        (home / "thesis.tex").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    assert completed(home, "show m") == []
    assert sorted(tmp_path.rglob("*")) == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.sqlite
@pytest.mark.check
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes(home: Path, tmp_path: Path) -> None:
    reg = tmp_path / "bin" / "reg"
    reg.parent.mkdir()
    reg.write_text(
        f"#!{sys.executable}\nimport sys\nfrom cli.main import main\nsys.argv[0] = 'reg'\n"
        "try: main()\nfinally:\n    heavy = {'torch', 'transformers', 'zarr', 'numpy'} & sys.modules.keys()\n"
        f"    open({str(tmp_path / 'heavy')!r}, 'a').write(''.join(heavy))\n"
    )
    reg.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(
        """source <(reg completion bash)
        complete_line() {
            COMP_LINE=$1 COMP_POINT=${#1} COMPREPLY=()
            _reg_completion reg 2>/dev/null
            echo "${COMPREPLY[*]}"
        }
        complete_line "reg comple"
        complete_line "reg show mathe"
        complete_line "reg show math@s"
        complete_line "reg compose --experts code,math@"
        complete_line "reg compose --experts=code,mathe"
        complete_line "reg show 'unfinished"
        """
    )
    environment = os.environ | {"REG_HOME": str(home), "PATH": f"{reg.parent}:{os.environ['PATH']}", "IFS": "\n"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines() == ["completion", "mathematics", "stable", "1 stable", "code,mathematics", ""]
    assert done.stderr == ""
    assert (tmp_path / "heavy").read_text() == ""
