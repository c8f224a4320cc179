"""Proves: an administrator sees and upgrades the schema, also of a catalog that cannot be opened."""

from pathlib import Path

from registry import Registry
from registry.database import revisions, upgrade
from store.catalog import schema


def test_revisions_before_and_after(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert revisions(home) == (None, schema.HEAD)
    assert not home.exists()
    assert upgrade(home) == (None, schema.HEAD)
    assert upgrade(home) == (schema.HEAD, schema.HEAD)
    assert revisions(home) == (schema.HEAD, schema.HEAD)
    Registry(home).close()
