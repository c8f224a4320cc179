"""Proves: the commands of the page on teams, run as they are written there, do what it says, on two homes."""

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.main import main
from registry import Registry
from tests.catalogs import Schemas
from tests.conftest import Zoo, files_of
from tests.running import ROOT
from tests.test_readme import blocks, run_line

PAGE = ROOT / "docs" / "tasks" / "team.md"


@pytest.fixture
def places(
    postgres_server: str, arrays_url: str, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, str]]:
    """What the page calls the database, the bucket and the home of one machine → what they are here."""
    (tmp_path / "checkpoints").mkdir()
    for name, folder in {"base": zoo.base, **zoo.experts}.items():
        (tmp_path / "checkpoints" / name).symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    for name in ("REG_HOME", "REG_DATABASE", "REG_ARRAYS", "REG_ACTOR"):
        monkeypatch.setenv(name, "")
    schemas = Schemas(postgres_server)
    yield {
        "postgresql://user@host/registry": schemas.fresh(),
        "s3://bucket/team": arrays_url,
        "/srv/registry": str(tmp_path / "srv"),
    }
    schemas.drop()


LINES = [text.splitlines() for language, text in blocks(PAGE) if language == "bash"]
"""The lines of each block of the page that is run."""


def on_machine(name: str, lines: list[str], places: dict[str, str]) -> None:
    """Run lines of the page with the home of a machine."""
    os.environ["REG_HOME"] = name
    for line in lines:
        for written, here in places.items():
            line = line.replace(written, here)
        if not line.startswith("pip "):
            run_line(line)


def test_the_set_up_is_ten_commands() -> None:
    first, second, _ = LINES
    assert len(first + second) == 10
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (asked,) = re.findall(r"pip install .* -e '\.\[(.*)\]'", first[0])
    assert set(asked.split(",")) <= set(extras)


@pytest.mark.check
def test_two_machines_share_what_the_page_sets_up(places: dict[str, str], zoo: Zoo, tmp_path: Path) -> None:
    first, second, _ = LINES
    on_machine("one", first, places)
    os.environ["REG_ACTOR"] = "grace"
    *before, _, _ = second
    on_machine("two", before, places)
    assert CliRunner().invoke(main, ["list", "--all"]).output.count("active") == 3
    on_machine("two", second[len(before) :], places)
    with Registry("two") as two, Registry("one") as one:
        states = {version.ref: version.state for version in one.versions(everything=True)}
        assert states == {"base@1": "active", "code@1": "active", "math@1": "withdrawn"}
        assert one.versions(everything=True) == two.versions(everything=True)
        added = {event.subject: event.actor for event in one.log() if event.action.startswith("add-")}
        assert added == {"base@1": "ada", "code@1": "ada", "math@1": "ada"}
        assert [(e.action, e.actor) for e in one.log(limit=1)] == [("opt-out", "grace")]
        assert one.verify().problems == ()
        assert {path.name for path in Path("one").iterdir()}.isdisjoint({"arrays", "catalog.sqlite"})
    os.environ["REG_HOME"] = "one"
    refused = CliRunner().invoke(main, ["compose", "--experts", "code,math", "--out", "again"])
    assert refused.exit_code == 1
    assert "math was opted out" in refused.stderr
    with Registry("alone", database=f"sqlite:///{tmp_path / 'alone.sqlite'}", arrays=tmp_path / "arrays") as alone:
        for name in ("math", "code"):
            alone.add_expert(name, zoo.experts[name])
        alone.compose(["math", "code"], "expected")
    assert files_of(Path("moe")) == files_of(Path("expected"))


@pytest.mark.check
def test_registry_of_one_machine_moves_as_the_page_says(places: dict[str, str], zoo: Zoo) -> None:
    first, _, move = LINES
    source: dict[str, Any] = {"database": f"sqlite:///{places['/srv/registry']}/catalog.sqlite"}
    with Registry(places["/srv/registry"], **source, arrays=f"{places['/srv/registry']}/arrays") as one:
        for name in ("math", "code"):
            one.add_expert(name, zoo.experts[name])
        one.compose(["math", "code"], "before")
        known = one.versions(), one.log()
    on_machine("one", [*first[:2], *move], places)
    with Registry("two") as two:
        assert (two.versions(), two.log()) == known
        two.compose(["code", "math"], "after")
        assert two.verify().problems == ()
    assert files_of(Path("after")) == files_of(Path("before"))
