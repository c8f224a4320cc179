"""Proves: the commands of the tour run in order, the README's figures are measured, and generated pages are complete.

And: the commands of pages on trainings run on the files of the demo.
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cli.command_names import COMMANDS, summary_of
from cli.command_reference import commands, write
from cli.json_schema.commands import SCHEMAS
from cli.main import main
from registry import Registry
from registry.io.model_folder import MARKER
from tests.running import ROOT

README = ROOT / "README.md"
TOUR = ROOT / "docs" / "tour.md"
MEASURED = tuple(f"benchmarks/{page}.md" for page in ("QUALITY", "LARGER", "RESULTS", "REAL"))
SHORT = {
    "add-expert": ["--tokens", "2048"],
    "train-expert": ["--tokens", "512", "--seq-len", "128", "--batch-size", "2"],
    "train-soup": ["--tokens", "512", "--seq-len", "128", "--batch-size", "2"],
    "train-simoe": ["--tokens", "512", "--seq-len", "128", "--batch-size", "2"],
    "--fit": ["--fit-tokens", "2560", "--fit-steps", "1"],
}
"""Command or option → what makes it short enough for a test."""


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return (language, text) of every code block of a page to run, in order."""
    fences = re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [(language, text) for language, text in fences if language in ("bash", "python")]


def run_line(line: str) -> None:
    words = shlex.split(line, comments=True)
    if not words:
        return
    if words[0] == "export":
        for name, _, value in (word.partition("=") for word in words[1:]):
            os.environ[name] = value.replace("$PWD", str(Path.cwd()))  # a test has set it before, and resets it
    elif words[0] == "reg":
        result = CliRunner().invoke(main, words[1:])
        assert result.exit_code == 0, f"{line}\n{result.output}"
    else:
        subprocess.run(words, check=True)


@pytest.fixture
def place(small_demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which the demo was run."""
    shutil.copytree(small_demo, tmp_path / "demo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REG_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.check
def test_code_blocks_run_in_order(place: Path) -> None:
    assert len(blocks(TOUR)) > 5
    for language, text in [*blocks(README), *blocks(TOUR)]:
        if language == "bash":
            for line in text.replace("\\\n", "").splitlines():
                run_line(line)
        else:
            exec(compile(text, "tour.md", "exec"), {})
    assert (place / "moe" / MARKER).is_file()
    assert (place / "without-math" / MARKER).is_file()
    assert not (place / "home").exists()  # everything happened in the one that the demo left
    with Registry() as registry:
        assert registry.home.path.samefile("demo/registry")
        assert [v.ref for v in registry.versions()] == ["base@1", "code@1", "english@1"]
        assert registry.verify().problems == ()


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("name", ["soup", "simoe", "several-architectures"])
def test_pages_on_trainings_run_on_the_demo(place: Path, name: str) -> None:
    for language, text in blocks(ROOT / "docs" / "tasks" / f"{name}.md"):
        if language == "python":
            exec(compile(text, f"{name}.md", "exec"), {})
            continue
        for line in text.splitlines():
            words = shlex.split(line)
            run_line(shlex.join([*words, *(more for key, extra in SHORT.items() if key in words for more in extra)]))
            if "--out" in words:
                assert (place / words[words.index("--out") + 1] / MARKER).is_file()


def test_generated_pages_have_every_command_option_and_field(tmp_path: Path) -> None:
    """They are written from the commands whenever the site is built, and git does not keep them."""
    write(tmp_path)
    page, fields = ((tmp_path / "docs" / name).read_text(encoding="utf-8") for name in ("cli.md", "json.md"))
    sections = {part.partition("\n")[0]: part for part in re.split(r"^## ", page, flags=re.MULTILINE)}
    printed = {part.partition("\n")[0]: part for part in re.split(r"^## ", fields, flags=re.MULTILINE)}
    for command, own in commands():
        path = own.command_path
        assert f"| [`{path}`](#{path.replace(' ', '-')}) | " in page
        assert f"reg {path.partition(' ')[2]}" in sections[path]
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert re.search(rf"^\| `[^`]*{option.opts[0]}\b", sections[path], re.MULTILINE), (path, option)
        for field in SCHEMAS[path].get("properties", {}):
            assert f"`{field}`" in printed[path]
        assert SCHEMAS[path]["description"] in printed[path]
    assert "`error.exit_code`" in printed["Errors"]
    assert {"/docs/cli.md", "/docs/json.md"} <= {*(ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()}


def test_help_lists_commands_as_their_own_help_begins() -> None:
    """`reg --help` reads summaries from the sources of the commands, so that it imports none of them."""
    context = click.Context(main, info_name="reg")
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        for limit in (45, 60, 1000):
            brief = click.Command(name, help=summary_of(name)).get_short_help_str(limit)
            assert brief == command.get_short_help_str(limit)


def test_readme_stays_a_landing_page_and_names_what_ci_calls() -> None:
    page = README.read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 130
    assert "docs/tour.md" in page
    assert "make test" in page
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_figures_are_those_measured() -> None:
    section = README.read_text(encoding="utf-8").partition("## What was measured")[2].partition("\n## ")[0]
    cells = [cell.strip(" *") for line in section.splitlines() if line.startswith("| ") for cell in line.split("|")[2:]]
    figures = [cell for cell in cells if re.fullmatch(r"\d+\.\d+", cell)]
    assert len(figures) > 10
    measured = {cell.strip() for page in MEASURED for cell in (ROOT / page).read_text(encoding="utf-8").split("|")}
    assert [figure for figure in figures if figure not in measured] == []
