"""Proves: a folder that is there for a while goes with all that is in it, and a full disk is told, by its place.

A lock excludes others; without locks only writers that can do without go on, and nothing is deleted.
"""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry
from registry.errors import StorageError
from registry.io.disk import try_lock
from registry.io.work_dirs import temporary, temporary_folder, work_dirs_in


def refuse(*_words: Any, **_options: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_goes_when_it_is_no_longer_needed(tmp_path: Path) -> None:
    """An error that is not of the disk passes."""
    with pytest.raises(FileNotFoundError), temporary_folder(tmp_path / "new") as folder:
        shutil.copyfile(shutil.copyfile(__file__, folder / "some"), folder / "absent" / "x")
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(("number", "hint"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "who may write there")])
def test_what_the_disk_refuses_is_told(tmp_path: Path, number: int, hint: str) -> None:
    with pytest.raises(StorageError) as caught, temporary_folder(tmp_path):
        raise OSError(number, os.strerror(number))
    assert caught.value.message == f"{tmp_path} cannot be written: {os.strerror(number)}"
    assert hint in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="space is not taken beforehand here")
def test_pass_without_space_is_an_error_and_not_the_end_of_the_process(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(StorageError, match=r"work/.* cannot be written: No space left on device"):
        filled.compose(["code", "math"], tmp_path / "moe", Recipe(router="ridge", refine=1))
    assert not (tmp_path / "moe").exists()
    assert list(filled.home.work.iterdir()) == []


def no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_lock_excludes_others_where_there_are_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "file").open("w") as file, (tmp_path / "file").open("w") as other:
        assert try_lock(file.fileno())
        assert not try_lock(other.fileno())
        assert not try_lock(other.fileno(), required=False)
        monkeypatch.setattr("fcntl.flock", no_locks)
        with pytest.raises(OSError, match="No locks"):
            try_lock(file.fileno())
        assert try_lock(file.fileno(), required=False)


def test_no_folder_counts_as_left_by_a_crash_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with temporary(tmp_path):
        monkeypatch.setattr("fcntl.flock", no_locks)
        with pytest.raises(OSError, match="No locks"):
            work_dirs_in(tmp_path)
        monkeypatch.undo()
