"""Proves: a registry is where it was said to be, and says why it cannot be there."""

from pathlib import Path

import pytest

from registry import Registry
from registry.errors import ConflictError, StorageError
from registry.home import Home


@pytest.mark.sqlite
def test_home_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Home.locate(tmp_path / "a").path == tmp_path / "a"
    monkeypatch.setenv("REG_HOME", str(tmp_path / "b"))
    assert Home.locate().path == tmp_path / "b"
    assert Home.locate().database == f"sqlite:///{tmp_path / 'b' / 'catalog.sqlite'}"
    assert Home.locate(tmp_path / "a").path == tmp_path / "a"
    monkeypatch.setenv("REG_DATABASE", "sqlite:////elsewhere.sqlite")
    assert Home.locate().database == "sqlite:////elsewhere.sqlite"
    monkeypatch.delenv("REG_HOME")
    assert Home.locate().path.name == "reg"


def test_home_with_a_folder_that_is_being_deleted_is_one(tmp_path: Path) -> None:
    """Where catalog and arrays are elsewhere, nothing else says that it is a registry's."""
    home = Home(tmp_path, "sqlite:////elsewhere.sqlite", arrays_elsewhere="s3://bucket/there")
    (tmp_path / ".cache.gone").mkdir()
    home.check(create=False)
    (tmp_path / ".other.gone").mkdir()
    with pytest.raises(ConflictError, match="is not empty and holds no registry"):
        home.check(create=False)


def test_home_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be created"):
        Registry(tmp_path / "file" / "home")
