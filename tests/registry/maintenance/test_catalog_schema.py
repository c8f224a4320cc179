"""Proves: an administrator sees and upgrades the schema, also of a catalog that cannot be opened."""

from pathlib import Path

import pytest

from registry import Registry
from registry.errors import NotFoundError
from registry.maintenance.catalog_schema import revisions, upgrade
from store.catalog import schema


@pytest.mark.sqlite
def test_revisions_before_and_after(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with pytest.raises(NotFoundError, match="there is no registry at"):
        revisions(home)
    assert not home.exists()
    assert upgrade(home) == schema.Upgrade(None, schema.HEAD, None)
    assert upgrade(home) == schema.Upgrade(schema.HEAD, schema.HEAD, None)
    assert revisions(home) == (schema.HEAD, schema.HEAD)
    Registry(home).close()


def test_default_home_need_not_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.home._default", lambda: tmp_path / "home")
    assert revisions() == (None, schema.HEAD)
    assert not (tmp_path / "home").exists()
