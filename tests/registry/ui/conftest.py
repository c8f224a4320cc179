"""The pages of a registry with a base model and experts."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry import Registry
from tests.pages import Pages, served
from tests.registry.ui.browsing import FOLLOWED
from tests.registry.ui.examples import composed


@pytest.fixture
def pages(filled: Registry) -> Iterator[Pages]:
    with served(filled) as found:
        yield found


@pytest.fixture
def digest(filled: Registry) -> str:
    """A composition of two experts that is recorded, and not written."""
    return composed(filled, "/else/moe", "math", "code")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the server is started."""
    (folder := tmp_path / "work").mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def writable(filled: Registry, work: Path) -> Iterator[Pages]:
    """Pages from which jobs can be started."""
    with served(filled, may_write=True) as found:
        yield found


@pytest.fixture
def followed(filled: Registry, work: Path, tmp_path: Path) -> Iterator[Pages]:
    """Pages whose jobs go on until the file `go` is in the folder of the test."""
    with served(filled, may_write=True, program=(sys.executable, "-c", FOLLOWED, str(tmp_path / "go"))) as found:
        yield found
