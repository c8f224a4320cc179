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


@pytest.mark.parametrize("words", [["list"], ["show", "nosuch"], ["log"], ["opt-out", "nosuch"]], ids=" ".join)
def test_the_first_word_goes_when_there_is_more(tmp_path: Path, words: list[str]) -> None:
    Registry(tmp_path / "home").close()
    text = shown(tmp_path / "home", *words)
    assert text.startswith(f"{WORD}\r\x1b[K")
    assert text.count(WORD) == 1
    assert len(text) > len(f"{WORD}\r\x1b[K")


@pytest.mark.parametrize("words", [["list", "-q"], ["list", "--json"], ["--help"], ["list", "--help"]], ids=" ".join)
def test_quiet_json_and_help_have_none(tmp_path: Path, words: list[str]) -> None:
    Registry(tmp_path / "home").close()
    assert WORD not in shown(tmp_path / "home", *words)


def test_a_terminal_that_cannot_erase_has_none(tmp_path: Path) -> None:
    Registry(tmp_path / "home").close()
    assert WORD not in shown(tmp_path / "home", "list", term="dumb")
