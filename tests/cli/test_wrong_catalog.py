"""Proves: a catalog forgotten, mistaken or lost costs no array; every command that would touch them says so."""

from pathlib import Path

import pytest

from registry import Registry
from tests.cli.conftest import Reg
from tests.conftest import Zoo, files_of

TOUCHING = (
    *("gc", "gc --dry-run", "verify", "add-base other {base}", "add-expert math {math}"),
    *("opt-out base --purge --yes", "alias base x", "alias base x --delete", "compose --experts math --out {out}"),
)


@pytest.fixture
def reg(tmp_path: Path, zoo: Zoo) -> Reg:
    """The program on a registry with a base model."""
    with Registry(tmp_path / "home") as registry:
        registry.add_base("base", zoo.base)
    return Reg(tmp_path / "home")


@pytest.mark.check
def test_mistaken_catalog_is_refused(reg: Reg, zoo: Zoo, tmp_path: Path) -> None:
    with Registry(tmp_path / "elsewhere") as other:  # in which there is a base model too
        other.add_base("base", zoo.base, license="mit")
    before = files_of(reg.home / "arrays")
    for words in TOUCHING:
        given = words.format(base=zoo.base, math=zoo.experts["math"], out=tmp_path / "moe").split()
        told = reg("--database", f"sqlite:///{tmp_path / 'elsewhere' / 'catalog.sqlite'}", *given, code=1).stderr
        assert f"error: the arrays below {reg.home / 'arrays'} belong to another catalog (its id is " in told, words
        assert "next: name the right catalog with --database or REG_DATABASE" in told
        assert files_of(reg.home / "arrays") == before
    assert not (tmp_path / "moe").exists()


@pytest.mark.sqlite
def test_forgotten_database_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    reg, url = Reg(tmp_path / "home"), f"sqlite:///{tmp_path / 'x.sqlite'}"
    reg("--database", url, "add-base", "base", zoo.base)
    before = files_of(reg.home)
    for words in ("gc", "verify", "list", "db upgrade"):
        told = reg(*words.split(), code=1).stderr
        assert "belong to another catalog" in told
        assert f"not to sqlite:///{reg.home / 'catalog.sqlite'}, which holds no catalog" in told
    assert files_of(reg.home) == before
    assert reg("--database", url, "verify").stdout.startswith("intact: 1 version,")


@pytest.mark.sqlite
def test_lost_catalog_is_not_made_anew_and_a_backup_brings_all_back(reg: Reg, tmp_path: Path) -> None:
    (reg.home / "catalog.sqlite").rename(tmp_path / "backup")
    assert "restore it from a backup" in reg("gc", code=1).stderr
    assert not (reg.home / "catalog.sqlite").exists()
    (tmp_path / "backup").rename(reg.home / "catalog.sqlite")
    assert reg("gc").stdout == "deleted 0 arrays (0 B)\n"
    reg("verify")


def test_home_from_before_there_were_ids_is_adopted(reg: Reg) -> None:
    id_of_owner = reg.home / "arrays" / "registry"
    owner = id_of_owner.read_bytes()
    id_of_owner.unlink()
    reg("verify")
    reg("gc", "--dry-run")
    assert not id_of_owner.exists()
    reg("gc")
    assert id_of_owner.read_bytes() == owner
