"""Proves: on a terminal a command says something before the library of its catalog is imported, and then erases it."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from registry import Registry
from tests.cli.conftest import on_terminal

WORD = "opening the registry …"


@pytest.mark.check
@pytest.mark.parametrize("words", ["list", "show nosuch"])
def test_the_first_word_goes_when_there_is_more(tmp_path: Path, words: str) -> None:
    Registry(tmp_path / "home").close()
    text = on_terminal("--home", tmp_path / "home", *words.split(), NO_COLOR="1")
    assert text.startswith(f"{WORD}\r\x1b[K")
    assert text.count(WORD) == 1
    assert len(text) > len(f"{WORD}\r\x1b[K")


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize(
    ("words", "term"), [("list", "dumb"), ("list -q", "xterm"), ("list --json", "xterm"), ("--help", "xterm")]
)
def test_quiet_json_help_and_terminals_that_cannot_erase_have_none(tmp_path: Path, words: str, term: str) -> None:
    Registry(tmp_path / "home").close()
    assert WORD not in on_terminal("--home", tmp_path / "home", *words.split(), TERM=term)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("verify --json", "hashing all registered content …"),
        ("gc --dry-run", "looking for what nothing uses …"),
        ("push . org/x", "checking . before the push …"),
        ("push-expert x org/x --json", "reading x for the push …"),
    ],
)
def test_a_pipe_has_a_line_before_the_catalog_is_opened(tmp_path: Path, words: str, line: str) -> None:
    Registry(tmp_path / "home").close()
    script = (
        "import sys\n"
        "class Seen:\n"
        "    def __init__(self, stream): self.stream, self.first = stream, None\n"
        "    def write(self, text):\n"
        "        self.first = self.first or (text and (text.strip(), 'sqlalchemy' in sys.modules))\n"
        "        return self.stream.write(text)\n"
        "    def __getattr__(self, name): return getattr(self.stream, name)\n"
        "seen = sys.stderr = Seen(sys.stderr)\n"
        "from cli.main import main\n"
        f"try: main(['--home', {str(tmp_path / 'home')!r}, *{words.split()!r}])\n"
        "except SystemExit: pass\n"
        "seen.stream.write(repr(seen.first))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert result.stderr.endswith(repr((line, False)))
    assert line not in result.stdout
    assert line not in CliRunner().invoke(main, ["--home", str(tmp_path / "home"), "-q", *words.split()]).output
