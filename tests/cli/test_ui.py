"""Proves: `reg ui` serves on this machine alone until it is interrupted, and says what stands in its way."""

import importlib.util
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from importlib.machinery import ModuleSpec
from pathlib import Path
from urllib.parse import unquote

import pytest

from cli.commands.ui import _jobs, _opened
from cli.session import Session
from registry import Registry
from tests.cli.conftest import Reg


@pytest.mark.sqlite
@pytest.mark.check
def test_it_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    Registry(tmp_path / "my home").close()
    script = "from cli.main import main; main()"
    words = ["--home", "my home", "ui", "--port", "0", "--json"]  # from another folder the commands need the whole path
    with subprocess.Popen(
        [sys.executable, "-c", script, *words], stdout=subprocess.PIPE, text=True, cwd=tmp_path,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        told = json.loads("".join(process.stdout.readline() for _ in range(4)))
        assert told["home"] == str(tmp_path / "my home")
        with urllib.request.urlopen(told["url"], timeout=600) as answer:
            assert f"reg --home &#39;{tmp_path / 'my home'}&#39; add-expert" in answer.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == 0


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    Registry(tmp_path / "home").close()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = Reg(tmp_path / "home")("ui", "--port", port, code=1)
    told = f"error: port {port} is taken\n  next: choose another one, or any free one: --port 0\n"
    assert (result.stdout, result.stderr) == ("", told)


def test_what_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in ("starlette", "uvicorn") else find(name, package)

    monkeypatch.setattr("importlib.util.find_spec", without)
    told = Reg(tmp_path)("ui", code=1).stderr
    assert "the pages need starlette, uvicorn" in told
    assert "pip install 'expert-registry[ui]'" in told


def test_the_secret_goes_to_the_browser_by_a_file_of_this_user(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []
    monkeypatch.setattr("click.launch", launched.append)
    with _opened("http://127.0.0.1:1/?token=secret", secret=True):
        page = Path(unquote(launched[0].removeprefix("file://")))
        assert "secret" not in launched[0]
        assert "url=http://127.0.0.1:1/?token=secret" in page.read_text()
        assert page.parent.stat().st_mode & 0o077 == 0
    assert not page.exists()
    with _opened("http://127.0.0.1:1/", secret=False):
        assert launched[1:] == ["http://127.0.0.1:1/"]


def test_a_database_with_a_password_is_not_in_the_words_of_jobs(tmp_path: Path) -> None:
    with Registry(tmp_path / "home") as registry:
        jobs = _jobs(Session({"cli.session.database.typed": "postgresql+psycopg://user:secret@host/reg"}), registry)
    assert jobs._environment["REG_DATABASE"] == "postgresql+psycopg://user:secret@host/reg"
    assert "secret" not in " ".join(jobs._program)
    assert jobs._program[1] == "-P"  # no module of the working directory is run
