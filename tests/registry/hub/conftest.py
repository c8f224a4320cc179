"""A Hub on this machine, for what is pushed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.writable_hub import WritableHub, writable_hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WritableHub]:
    yield from writable_hub(monkeypatch, tmp_path / "huggingface")
