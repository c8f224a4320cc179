"""Proves: arrays are touched through their own catalog alone, and those from before there were ids are adopted."""

from collections.abc import Iterator
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
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = Catalog(f"sqlite:///{tmp_path / 'catalog.sqlite'}", tmp_path / "lock")
    yield opened
    opened.close()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Catalog]:
    opened = Catalog(f"sqlite:///{tmp_path / 'other.sqlite'}", tmp_path / "lock")
    yield opened
    opened.close()


def put(store: FolderArrays) -> str:
    return store.put(ArraySource.of(np.ones(3, dtype=np.float32), "float32"))


def test_id_is_random_and_stays(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    assert catalog.id != other.id
    again = Catalog(f"sqlite:///{tmp_path / 'catalog.sqlite'}", tmp_path / "lock")
    assert again.id == catalog.id
    again.close()


def test_arrays_carry_the_id_which_is_no_array(store: FolderArrays, catalog: Catalog) -> None:
    claim(catalog, store)
    assert store.owner() == catalog.id
    assert list(store.digests()) == []
    digest = put(store)
    claim(catalog, store)
    assert list(store.digests()) == [digest]


def test_another_catalog_is_refused(store: FolderArrays, catalog: Catalog, other: Catalog) -> None:
    claim(catalog, store)
    put(store)
    check_owner(catalog, store)
    for check in (check_owner, claim):
        with pytest.raises(ConflictError) as caught:
            check(other, store)
        assert caught.value.message == (
            f"the arrays below {store.root} belong to another catalog (its id is {catalog.id}), not to {other.place}"
        )
        assert "--database or REG_DATABASE" in str(caught.value.hint)
    assert store.owner() == catalog.id


def test_folder_without_arrays_is_anybodys(store: FolderArrays, catalog: Catalog, other: Catalog) -> None:
    check_owner(catalog, store)
    assert not store.root.exists()
    claim(catalog, store)
    claim(other, store)
    assert store.owner() == other.id


@pytest.mark.parametrize("left", [None, b"", b"0123\n"], ids=["none", "empty", "cut"])
def test_arrays_without_an_id_are_adopted_by_the_catalog_that_knows_one(
    store: FolderArrays, catalog: Catalog, other: Catalog, left: bytes | None
) -> None:
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
