"""Proves: a folder that is there for a while goes with all that is in it, and a full disk is told, by its place."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry
from registry.errors import StorageError
from registry.io.work_dirs import temporary_folder


def refuse(*_words: Any, **_options: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_goes_when_it_is_no_longer_needed(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "some").write_text("x")
        (folder / "some").mkdir()

    with pytest.raises(FileExistsError), temporary_folder(tmp_path / "new") as folder:
        fill(folder)
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(("number", "hint"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "who may write there")])
def test_what_the_disk_refuses_is_told(tmp_path: Path, number: int, hint: str) -> None:
    with pytest.raises(StorageError) as caught, temporary_folder(tmp_path):
        raise OSError(number, os.strerror(number))
    assert caught.value.message == f"{tmp_path} cannot be written: {os.strerror(number)}"
    assert hint in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_another_error_passes(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), temporary_folder(tmp_path) as folder:
        (folder / "absent").read_bytes()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="space is not taken beforehand here")
def test_refit_without_space_is_an_error_and_not_the_end_of_the_process(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(StorageError, match=r"work/.* cannot be written: No space left on device"):
        filled.compose(["code", "math"], tmp_path / "moe", Recipe(refine_mlp=True))
    assert not (tmp_path / "moe").exists()
    assert list(filled.home.work.iterdir()) == []
