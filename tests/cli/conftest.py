"""Running commands: in this process on a registry, and on a terminal in a process of their own."""

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import Registry
from tests.conftest import Zoo

ROOT = Path(__file__).parents[2]
TINY = ("--batch-size", 2, "--seq-len", 32, "--device", "cpu")
"""Options of commands that train or collect."""
PAIR = ("--experts", "code,math")


@dataclass(frozen=True)
class Reg:
    """The program on the registry in `home`, where there need be none."""

    home: Path

    def __call__(self, *words: object, code: int = 0, **options: Any) -> Result:
        """Run `reg --home HOME WORD…`, which ends with exit code `code`."""
        result = CliRunner().invoke(main, ["--home", str(self.home), *map(str, words)], **options)
        assert result.exit_code == code, result.output
        return result

    def json(self, *words: object, code: int = 0) -> Any:
        """Return what a command prints with --json, which must be all that it prints on stdout."""
        return json.loads(self(*words, "--json", code=code).stdout)


@pytest.fixture
def reg(filled: Registry) -> Reg:
    """The program on a registry of its own with the base model and the five experts."""
    return Reg(filled.home.path)


def some_text(zoo: Zoo, *names: str, windows: int = 1) -> tuple[object, ...]:
    """Return the options that evaluate on a little test text of some experts."""
    data = [word for name in names for word in ("--data", f"{name}={zoo.test[name]}")]
    return ("--windows", windows, "--seq-len", 32, *data)


def on_terminal(*words: object, **environment: str) -> str:
    """Return all that `reg WORD…` writes to a terminal."""
    ours, its = pty.openpty()
    surroundings = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM")}
    with subprocess.Popen(
        [sys.executable, "-m", "cli", *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=its,
        env=surroundings | {"TERM": "xterm"} | environment,
    ):
        os.close(its)
        read = b""
        with suppress(OSError):  # its end, on Linux
            while more := os.read(ours, 4096):
                read += more
    os.close(ours)
    return read.decode()
