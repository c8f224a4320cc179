"""Proves: on a terminal a command says something before the library of its catalog is imported, and then erases it."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from registry import Registry

WORD = "opening the registry …"


def shown(home: Path, *words: str, term: str = "xterm") -> str:
    """Return all that a command writes to a terminal."""
    ours, its = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "cli", "--home", str(home), *words],
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=its,
        env=os.environ | {"TERM": term, "NO_COLOR": "1"},
    ):
        os.close(its)
        read = b""
        with suppress(OSError):  # its end, on Linux
            while more := os.read(ours, 4096):
                read += more
    os.close(ours)
    return read.decode()


@pytest.mark.check
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("words", [["list"], ["show", "nosuch"], ["log"], ["opt-out", "nosuch"]], ids=" ".join)
def test_the_first_word_goes_when_there_is_more(tmp_path: Path, words: list[str]) -> None:
    Registry(tmp_path / "home").close()
    text = shown(tmp_path / "home", *words)
    assert text.startswith(f"{WORD}\r\x1b[K")
    assert text.count(WORD) == 1
    assert len(text) > len(f"{WORD}\r\x1b[K")


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize("words", [["list", "-q"], ["list", "--json"], ["--help"], ["list", "--help"]], ids=" ".join)
def test_quiet_json_and_help_have_none(tmp_path: Path, words: list[str]) -> None:
    Registry(tmp_path / "home").close()
    assert WORD not in shown(tmp_path / "home", *words)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(
    ("words", "line", "option"),
    [
        ("verify", "hashing all registered content …", ""),
        ("verify", "hashing all registered content …", "--json"),
        ("gc --dry-run", "looking for what nothing uses …", ""),
        ("push . org/x", "checking . before the push …", ""),
        ("push-expert x org/x", "reading x for the push …", "--json"),
    ],
)
def test_a_pipe_has_a_line_before_the_catalog_is_opened(tmp_path: Path, words: str, line: str, option: str) -> None:
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
        f"try: main(['--home', {str(tmp_path / 'home')!r}, *{[*words.split(), *option.split()]!r}])\n"
        "except SystemExit: pass\n"
        "seen.stream.write(repr(seen.first))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert result.stderr.endswith(repr((line, False)))
    assert line not in result.stdout
    quiet = subprocess.run(
        [sys.executable, "-m", "cli", "--home", str(tmp_path / "home"), "-q", *words.split()],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert line not in quiet.stdout + quiet.stderr


def test_a_terminal_that_cannot_erase_has_none(tmp_path: Path) -> None:
    Registry(tmp_path / "home").close()
    assert WORD not in shown(tmp_path / "home", "list", term="dumb")
