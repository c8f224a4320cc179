"""Proves: a list comes in pages, each tells how the next is had, and pages together are the whole list."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from registry import Registry
from store.catalog import Catalog
from tests.store.test_catalog import new

VERSIONS = 7
pytestmark = pytest.mark.sqlite


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A registry of one base model and six versions of three experts; one of them is opted out."""
    Registry(tmp_path / "home").close()
    catalog = Catalog(f"sqlite:///{tmp_path / 'home' / 'catalog.sqlite'}", tmp_path / "home" / "lock")
    catalog.add_version(new("base", "0", kind="base", statistics=()))
    for number, name in enumerate(("code", "math", "law", "code", "math", "law"), 1):
        tags = {"domain": name, "odd": "yes"} if number % 2 else {"domain": name}
        catalog.add_version(new(name, f"{number:x}", tags=tags))
    catalog.withdraw([version for version in catalog.versions("law") if version.number == 1])
    catalog.close()
    return tmp_path / "home"


SHOW = "  next: reg show base@1\n"


def listed(home: Path, *words: str) -> tuple[list[str], str]:
    """Return the versions that a list shows, and what it says of others."""
    result = CliRunner().invoke(main, ["list", *words], env={"REG_HOME": str(home)})
    assert result.exit_code == 0, result.output
    if "--json" in words:
        return [version["ref"] for version in json.loads(result.stdout)], result.stderr
    return [line.split()[0] for line in result.stdout.splitlines()[1:]], result.stderr


def test_following_the_command_for_more_shows_everything_once(home: Path) -> None:
    whole, nothing = listed(home, "--all")
    assert (len(whole), nothing) == (VERSIONS, SHOW)
    assert whole == sorted(whole)
    words, found = ["--all", "--limit", "3"], list[str]()
    for more in (4, 1, 0):
        page, told = listed(home, *words)
        found += page
        words = told.split()[4:]
        assert told == (f"{more} more: reg list --all --limit 3 --offset {len(found)}\n" if more else told)
    assert found == whole


def test_a_page_counts_only_what_is_asked_for(home: Path) -> None:
    told = listed(home, "--kind", "expert", "--limit", "4")[1]
    assert told == "1 more: reg list --kind expert --limit 4 --offset 4\n"
    page, told = listed(home, "--tag", "odd=yes", "--tag", "domain=code", "--limit", "1")
    assert (page, told) == (["code@1"], "  next: reg show code@1\n")
    page, told = listed(home, "--tag", "odd=yes", "--limit", "1")
    assert (page, told) == (["code@1"], "1 more: reg list --tag odd=yes --limit 1 --offset 1\n")
    assert listed(home, "--tag", "odd=no")[0] == []
    assert listed(home, "--offset", "99") == ([], "")


def test_tokens_are_those_of_an_expert_s_own_text(home: Path) -> None:
    catalog = Catalog(f"sqlite:///{home / 'catalog.sqlite'}", home / "lock")
    for digest, kind in enumerate(("soup", "simoe"), 7):
        catalog.add_version(new(f"{kind}-1", str(digest), content={"family": "llama", kind: {"number": 1}}))
    catalog.close()
    lines = CliRunner().invoke(main, ["--home", str(home), "list", "--limit", "9"]).stdout.splitlines()[1:]
    found = {line.split()[0]: line.split()[4] for line in lines}
    assert found.pop("base@1") == found.pop("soup-1@1") == found.pop("simoe-1@1") == "-"
    assert set(found) == {"code@1", "code@2", "law@2", "math@1", "math@2"}
    assert set(found.values()) == {"100"}


def test_a_screenful_is_the_default_of_the_table_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.commands.versions.SCREENFUL", 2)
    assert listed(home) == (["base@1", "code@1"], "4 more: reg list --offset 2\n")
    assert len(listed(home, "--json")[0]) == VERSIONS - 1
    page, told = listed(home, "--json", "--limit", "2")
    assert (len(page), told) == (2, "4 more: reg list --limit 2 --offset 2 --json\n")
