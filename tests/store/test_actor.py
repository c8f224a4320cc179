"""Proves: every event says who acted: REG_ACTOR, else the system's user; and what is no name is refused."""

import getpass
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from registry import Registry
from store import actor as actors
from store.actor import actor
from store.catalog import Catalog
from store.errors import InvalidInputError
from tests.conftest import Zoo
from tests.store.test_catalog import new


def test_actor_is_the_variable_else_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REG_ACTOR", raising=False)
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    assert actor() == "ada"
    monkeypatch.setenv("REG_ACTOR", "Zoë of CI #7")
    assert actor() == "Zoë of CI #7"
    monkeypatch.delenv("REG_ACTOR")

    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert actor() == actors.UNKNOWN


def test_what_is_no_name_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for named in ("a" * 101, "two\nlines", " ada", "bell\a", "‮ada"):
        monkeypatch.setenv("REG_ACTOR", named)
        for act in (actor, lambda: Registry(tmp_path / "home")):
            with pytest.raises(InvalidInputError, match="REG_ACTOR is"):
                act()
    assert not (tmp_path / "home").exists()


def test_chain_covers_the_actor(monkeypatch: pytest.MonkeyPatch, catalog_url: str, tmp_path: Path) -> None:
    with closing(Catalog(catalog_url, tmp_path / "lock")) as catalog:
        for name in ("ada", "grace"):
            monkeypatch.setenv("REG_ACTOR", name)
            catalog.add_version(new(f"of-{name}"))
        assert [event.actor for event in catalog.events()] == ["grace", "ada"]
        with catalog.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE events SET details = replace(details, '\"ada\"', '\"eve\"')")
        assert catalog.chain().events == 0


def test_log_shows_who(monkeypatch: pytest.MonkeyPatch, zoo: Zoo, tmp_path: Path) -> None:
    monkeypatch.setenv("REG_ACTOR", "ada")
    with Registry(tmp_path / "home") as registry:
        registry.add_base("base", zoo.base)
    for words, told in (([], "ada"), (["--json"], '"actor": "ada"')):
        assert told in CliRunner().invoke(main, ["--home", str(tmp_path / "home"), "log", *words]).stdout
