"""Proves: a lock excludes others; without locks only writers that can do without go on, and nothing is deleted."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.io.file_lock import try_lock
from registry.io.work_dirs import temporary, work_dirs_in


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_lock_excludes_others(descriptor: int, tmp_path: Path) -> None:
    assert try_lock(descriptor)
    other = os.open(tmp_path / "file", os.O_RDWR)
    assert not try_lock(other)
    assert not try_lock(other, required=False)
    os.close(other)


def test_a_file_system_without_locks(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(OSError, match="No locks"):
        try_lock(descriptor)
    assert try_lock(descriptor, required=False)


def test_no_folder_counts_as_left_by_a_crash_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with temporary(tmp_path):
        monkeypatch.setattr("fcntl.flock", no_locks)
        with pytest.raises(OSError, match="No locks"):
            work_dirs_in(tmp_path)
        monkeypatch.undo()
