"""Proves: a command that fails creates no registry and no folder; the first write of one that succeeds creates it."""

from pathlib import Path

import pytest

from registry import Registry
from store.catalog import Catalog, NewVersion
from tests.cli.conftest import Reg
from tests.conftest import Zoo

FAILING = {
    "no folder": "add-expert math nosuch",
    "no data": "add-expert math {code} --data nosuch.txt",
    "no statistics of other weights": "add-expert math {tmp}/broken",
    "no base": "add-base base nosuch",
    "no such model": "evaluate nosuch --data code={text}",
    "no base to train": "train-expert math --base nosuch --data {text}",
    "no soup text": "train-soup s --base {base} --domains a=nosuch.txt --domains b={text} --experts 1",
    "no audited model": "audit-extraction nosuch --data {text}",
    "no checked": "check nosuch",
    "no member": "compose --experts nosuch --out {tmp}/out",
}


@pytest.mark.parametrize("case", FAILING)
def test_command_that_fails_leaves_nothing(zoo: Zoo, tmp_path: Path, case: str) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"model_type": "llama"}')
    values = {"tmp": tmp_path, "code": zoo.experts["code"], "base": zoo.base, "text": zoo.test["code"]}
    before = sorted(tmp_path.rglob("*"))
    Reg(tmp_path / "typo" / "home")(*FAILING[case].format(**values).split(), code=1)
    assert sorted(tmp_path.rglob("*")) == before


def test_first_registration_creates_the_registry(zoo: Zoo, tmp_path: Path) -> None:
    reg = Reg(tmp_path / "a" / "home")
    reg("check", zoo.experts["code"])  # which only looks
    assert list(tmp_path.iterdir()) == []
    reg("add-expert", "code", zoo.experts["code"])
    with Registry(reg.home, create=False) as registry:
        assert [version.ref for version in registry.versions()] == ["code@1"]
        assert registry.verify().problems == ()
        assert registry.arrays.owner() == registry.catalog.id


def test_two_that_found_no_catalog_write_to_one(tmp_path: Path) -> None:
    url, lock = f"sqlite:///{tmp_path / 'catalog.sqlite'}", tmp_path / "lock"
    one, other = (Catalog(url, lock, at_once=False) for _ in range(2))
    assert one.names() == other.names() == []
    assert list(tmp_path.iterdir()) == []
    one.add_version(NewVersion("code", "expert", "ab" * 32, {}, 1, ()))
    other.add_version(NewVersion("math", "expert", "cd" * 32, {}, 1, ()))
    assert one.names() == other.names() == ["code", "math"]
    assert one.id == other.id
    one.close()
    other.close()
