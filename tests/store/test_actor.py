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


@pytest.mark.parametrize("named", ["a" * 101, "two\nlines", " ada", "bell\a", "‮ada"])
def test_what_is_no_name_is_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str
) -> None:
    monkeypatch.setenv("REG_ACTOR", named)
    with pytest.raises(InvalidInputError, match="REG_ACTOR is"):
        actor()
    with pytest.raises(InvalidInputError, match="REG_ACTOR is"):
        Registry(tmp_path / "home")
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


@pytest.mark.check
def test_compositions_do_not_depend_on_who_makes_them(
    monkeypatch: pytest.MonkeyPatch, filled: Registry, tmp_path: Path
) -> None:
    from tests.conftest import files_of

    found = []
    for name in ("ada", "grace"):
        monkeypatch.setenv("REG_ACTOR", name)
        filled.compose(["math", "code"], tmp_path / name)
        found.append(files_of(tmp_path / name))
    assert found[0] == found[1]


def test_log_shows_who(monkeypatch: pytest.MonkeyPatch, zoo: Zoo, tmp_path: Path) -> None:
    monkeypatch.setenv("REG_ACTOR", "ada")
    with Registry(tmp_path / "home") as registry:
        registry.add_base("base", zoo.base)
    shown = CliRunner().invoke(main, ["--home", str(tmp_path / "home"), "log"])
    assert "ada" in shown.stdout
    told = CliRunner().invoke(main, ["--home", str(tmp_path / "home"), "log", "--json"])
    assert '"actor": "ada"' in told.stdout
