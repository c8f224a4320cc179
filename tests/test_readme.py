"""Proves: what the README tells a newcomer to type works, in order; what is written from commands is up to date."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from cli.reference import PAGES, commands, marks, written
from registry import Registry
from registry.io.model_folder import MARKER

README = Path(__file__).parents[1] / "README.md"


def blocks() -> list[tuple[str, str]]:
    """Return (language, text) of every code block that is to be run, in order."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [(language, text) for language, text in found if language in ("bash", "python")]


def run_line(line: str) -> None:
    words = shlex.split(line, comments=True)
    if not words:
        return
    if words[0] == "reg":
        result = CliRunner().invoke(main, words[1:])
        assert result.exit_code == 0, f"{line}\n{result.output}"
    else:
        subprocess.run(words, check=True)


def test_code_blocks_run_in_order(small_demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(small_demo, tmp_path / "demo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REG_HOME", str(tmp_path / "home"))
    assert len(blocks()) > 5
    for language, text in blocks():
        if language == "bash":
            for line in text.splitlines():
                run_line(line)
        else:
            exec(compile(text, "README.md", "exec"), {})
    assert (tmp_path / "moe" / MARKER).is_file()
    assert (tmp_path / "moe2" / MARKER).is_file()
    with Registry() as registry:
        assert [v.ref for v in registry.versions()] == ["base@1", "code@1", "code@2", "english@1", "english@2"]
        assert registry.verify().problems == ()


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_what_the_commands_say(name: str) -> None:
    page = (README.parent / name).read_text(encoding="utf-8")
    assert written(page) == page, "run: make reference"


def test_every_command_is_on_both_pages() -> None:
    readme, cli = (README.parent / name for name in ("README.md", "docs/cli.md"))
    for _, context in commands():
        anchor = context.command_path.replace(" ", "-")
        assert f"[`{context.command_path}`](docs/cli.md#{anchor})" in readme.read_text(encoding="utf-8")
        assert f"\n## {context.command_path}\n" in cli.read_text(encoding="utf-8")


def test_readme_stays_a_landing_page() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) < 450


def test_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no marks"):
        written("a page")
    with pytest.raises(ValueError, match="only one of the two marks of the commands"):
        written(f"a page\n{marks('commands')[0]}")


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (README.parent / target).exists(), target


def test_test_command_is_what_ci_calls() -> None:
    assert "make test" in README.read_text(encoding="utf-8")
    assert "make test" in (README.parent / ".ci" / "run").read_text(encoding="utf-8")
