"""Proves: a catalog forgotten, mistaken or lost costs no array; every command that would touch them says so."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import Registry
from tests.conftest import Zoo, files_of

TOUCHING = {
    "gc": ["gc"],
    "gc --dry-run": ["gc", "--dry-run"],
    "verify": ["verify"],
    "add-base": ["add-base", "other", "{base}"],
    "add-expert": ["add-expert", "math", "{math}"],
    "opt-out": ["opt-out", "base", "--purge", "--yes"],
    "alias": ["alias", "base", "x"],
    "alias --delete": ["alias", "base", "x", "--delete"],
    "compose": ["compose", "--experts", "math", "--out", "{out}"],
}


def run(home: Path, *words: object) -> Result:
    return CliRunner().invoke(main, ["--home", str(home), *map(str, words)])


def arrays(home: Path) -> dict[str, bytes]:
    return files_of(home / "arrays")


def other_catalog(zoo: Zoo, folder: Path) -> str:
    """Return the URL of another registry's catalog, in which there is a base model too."""
    with Registry(folder) as registry:
        registry.add_base("base", zoo.base, license="mit")
    return f"sqlite:///{folder / 'catalog.sqlite'}"


@pytest.mark.check(after=2)
@pytest.mark.trust(after=5)
@pytest.mark.parametrize("command", sorted(TOUCHING))
def test_mistaken_catalog_is_refused(zoo: Zoo, tmp_path: Path, command: str) -> None:
    home, out = tmp_path / "home", tmp_path / "moe"
    assert run(home, "add-base", "base", zoo.base).exit_code == 0
    before = arrays(home)
    words = [word.format(base=zoo.base, math=zoo.experts["math"], out=out) for word in TOUCHING[command]]
    result = run(home, "--database", other_catalog(zoo, tmp_path / "elsewhere"), *words)
    assert result.exit_code == 1
    assert f"error: the arrays below {home / 'arrays'} belong to another catalog (its id is " in result.stderr
    assert "next: name the right catalog with --database or REG_DATABASE" in result.stderr
    assert arrays(home) == before
    assert not out.exists()


def test_forgotten_database_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    home, url = tmp_path / "home", f"sqlite:///{tmp_path / 'x.sqlite'}"
    assert run(home, "--database", url, "add-base", "base", zoo.base).exit_code == 0
    before = files_of(home)
    for words in (["gc"], ["verify"], ["list"], ["db", "upgrade"]):
        result = run(home, *words)
        assert result.exit_code == 1, words
        assert "belong to another catalog" in result.stderr
        assert f"not to sqlite:///{home / 'catalog.sqlite'}, which holds no catalog" in result.stderr
    assert files_of(home) == before
    assert run(home, "--database", url, "verify").stdout.startswith("intact: 1 version,")


def test_lost_catalog_is_not_made_anew_and_a_backup_brings_all_back(zoo: Zoo, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert run(home, "add-base", "base", zoo.base).exit_code == 0
    (home / "catalog.sqlite").rename(tmp_path / "backup")
    assert "restore it from a backup" in run(home, "gc").stderr
    assert not (home / "catalog.sqlite").exists()
    (tmp_path / "backup").rename(home / "catalog.sqlite")
    assert run(home, "gc").stdout == "deleted 0 arrays (0 B)\n"
    assert run(home, "verify").exit_code == 0


def test_home_from_before_there_were_ids_is_adopted(zoo: Zoo, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert run(home, "add-base", "base", zoo.base).exit_code == 0
    owner = (home / "arrays" / "registry").read_bytes()
    (home / "arrays" / "registry").unlink()
    assert run(home, "verify").exit_code == 0
    assert run(home, "gc", "--dry-run").exit_code == 0
    assert not (home / "arrays" / "registry").exists()
    assert run(home, "gc").exit_code == 0
    assert (home / "arrays" / "registry").read_bytes() == owner
