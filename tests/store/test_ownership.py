"""Proves: arrays are touched through their own catalog alone, and those from before there were ids are adopted."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from store.arrays import ArraySource, FolderArrays
from store.catalog import Catalog
from store.errors import ConflictError
from store.ownership import check_owner, check_unowned, claim
from tests.store.test_catalog import link, new


@pytest.fixture
def store(tmp_path: Path) -> FolderArrays:
    return FolderArrays(tmp_path / "arrays")


@pytest.fixture
def catalogs(tmp_path: Path) -> Iterator[list[Catalog]]:
    """Two of one home."""
    with ExitStack() as opened:
        yield [opened.enter_context(closing(catalog_of(tmp_path, name))) for name in ("catalog", "other")]


def catalog_of(folder: Path, name: str) -> Catalog:
    return Catalog(f"sqlite:///{folder / name}.sqlite", folder / "lock")


def put(store: FolderArrays) -> str:
    return store.put(ArraySource.of(np.ones(3, dtype=np.float32), "float32"))


def test_id_is_random_and_stays(catalogs: list[Catalog], tmp_path: Path) -> None:
    assert catalogs[0].id != catalogs[1].id
    with closing(catalog_of(tmp_path, "catalog")) as again:
        assert again.id == catalogs[0].id


def test_another_catalog_is_refused(store: FolderArrays, catalogs: list[Catalog]) -> None:
    catalog, other = catalogs
    claim(catalog, store)
    put(store)
    check_owner(catalog, store)
    claim(catalog, store)
    for check in (check_owner, claim):
        with pytest.raises(ConflictError) as caught:
            check(other, store)
        assert caught.value.message == (
            f"the arrays below {store.root} belong to another catalog (its id is {catalog.id}), not to {other.place}"
        )
        assert "--database or REG_DATABASE" in str(caught.value.hint)
    assert store.owner() == catalog.id


def test_folder_without_arrays_is_anybodys(store: FolderArrays, catalogs: list[Catalog]) -> None:
    catalog, other = catalogs
    check_owner(catalog, store)
    assert not store.root.exists()
    claim(catalog, store)
    claim(other, store)
    assert store.owner() == other.id


@pytest.mark.parametrize("left", [None, b"", b"0123\n"], ids=["none", "empty", "cut"])
def test_arrays_without_an_id_are_adopted_by_the_catalog_that_knows_one(
    store: FolderArrays, catalogs: list[Catalog], left: bytes | None
) -> None:
    catalog, other = catalogs
    digest = put(store)
    if left is not None:
        (store.root / "registry").write_bytes(left)  # as a crash leaves it
    other.add_version(replace(new(), arrays=(replace(link("1"), digest=digest),)))
    with pytest.raises(ConflictError, match="none of them is known here"):
        claim(catalog, store)
    check_owner(other, store)
    assert store.owner() is None
    claim(other, store)
    assert store.owner() == other.id


def test_catalog_is_not_made_anew_beside_arrays(store: FolderArrays, tmp_path: Path) -> None:
    put(store)
    with pytest.raises(ConflictError, match=r"new\.sqlite, which holds no catalog"):
        Catalog(f"sqlite:///{tmp_path / 'new.sqlite'}", tmp_path / "lock", partial(check_unowned, store))
    assert not (tmp_path / "new.sqlite").exists()
