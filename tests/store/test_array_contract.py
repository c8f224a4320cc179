"""Proves: every array store keeps the contract: a folder, a bucket, and the reference, and nothing else is relied on.

A registry whose arrays are in memory composes the same bytes as one on disk.
"""

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry import Registry
from store.arrays import CARRIERS, ArraySource, ArrayStore, Block, FolderArrays, digest_of, open_arrays
from store.arrays import source as module
from store.arrays.object_arrays import ObjectArrays
from store.errors import ConflictError, DamagedError, InvalidInputError, NotFoundError, StorageError
from tests.conftest import Zoo, files_of
from tests.store.memory_arrays import MemoryArrays
from tests.store.test_arrays import array, content


@pytest.fixture(params=["folder", "reference", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArrayStore:
    if request.param == "reference":
        return MemoryArrays()
    if request.param == "folder":
        return FolderArrays(tmp_path / "arrays")
    url = f"memory://{uuid4().hex}/team" if request.param == "memory" else request.getfixturevalue("arrays_url")
    return open_arrays(url, tmp_path / "chunks")


def damage(store: ArrayStore, digest: str, position: int) -> None:
    """Flip a bit of what a store holds of an array."""
    if isinstance(store, MemoryArrays):
        store.damage(digest, position)
        return
    if isinstance(store, ObjectArrays):
        key = min(key for key, _ in store._list(f"{digest[:2]}/{digest}") if "/c." in key)
        content = bytearray(store._read(key) or b"")
        content[position % len(content)] ^= 4
        store._overwrite(key, bytes(content))
        return
    assert isinstance(store, FolderArrays)
    chunk = min(store.path(digest).glob("c.*"))
    data = bytearray(chunk.read_bytes())
    data[position % len(data)] ^= 4
    chunk.write_bytes(data)


@pytest.mark.check(after=70)
@pytest.mark.trust(after=151)
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("dtype", sorted(CARRIERS))
@pytest.mark.parametrize("shape", [(1,), (7,), (4, 6), (3, 2, 5)])
def test_every_bit_comes_back(store: ArrayStore, dtype: str, shape: tuple[int, ...], compress: bool) -> None:
    source = array(dtype, shape)
    digest = store.put(source, compress=compress)
    assert digest == digest_of(source)
    back = store.open(digest)
    assert (back.dtype, back.shape, back.nbytes) == (dtype, shape, source.nbytes)
    assert content(back) == content(source)
    assert store.read(digest).tobytes() == content(source)


def test_digest_tells_dtype_and_shape_apart(store: ArrayStore) -> None:
    zeros = np.zeros((2, 6), dtype=np.uint16)
    sources = [
        ArraySource.of(zeros, "bfloat16"),
        ArraySource.of(zeros.view(np.float16), "float16"),
        ArraySource.of(zeros.reshape(3, 4), "bfloat16"),
        ArraySource.of(zeros.reshape(12), "bfloat16"),
    ]
    assert sorted(store.put(source) for source in sources) == list(store.digests())
    assert len(list(store.digests())) == 4


def test_rows_are_sampled_across_chunks(store: ArrayStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64)
    source = array("bfloat16", (100, 7))
    digest = store.put(source)
    rows = np.array([0, 8, 9, 50, 99])
    assert np.array_equal(store.sample(digest, rows), store.read(digest)[rows])
    with pytest.raises(DamagedError, match="array 000000000000 is damaged: it cannot be sampled"):
        store.sample("0" * 64, rows)


def test_absent_array_is_told(store: ArrayStore) -> None:
    with pytest.raises(NotFoundError, match="array 000000000000 is not below"):
        store.open("0" * 64)
    assert not store.is_intact("0" * 64)
    assert not store.has("0" * 64)
    assert (store.disk_bytes("0" * 64), store.delete("0" * 64)) == (0, 0)


def test_what_is_deleted_is_gone_and_frees_what_it_took(store: ArrayStore) -> None:
    one, two = store.put(array(seed=1)), store.put(array(seed=2))
    assert list(store.digests()) == sorted([one, two])
    size = store.disk_bytes(one)
    assert size >= 60
    assert store.delete(one) == size
    assert list(store.digests()) == [two]
    assert not store.has(one)
    assert store.is_intact(two)


@pytest.mark.parametrize(("dtype", "shape"), [("complex64", (1,)), ("float32", ()), ("float32", (0, 3))])
def test_what_cannot_be_stored_is_refused(store: ArrayStore, dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError, match="cannot store an array"):
        store.put(ArraySource(dtype, shape, lambda: iter(())))


def test_full_disk_leaves_nothing_behind(store: ArrayStore) -> None:
    good = array(shape=(4, 3))
    passes = count(1)

    def blocks() -> Iterator[Block]:
        number = next(passes)
        yield from good.blocks()
        if number > 1:  # the first pass makes the digest, the second one writes
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        StorageError, match=r"\(48 bytes\) cannot be written below .*: No space left on device"
    ) as caught:
        store.put(ArraySource("float32", (4, 3), blocks))
    assert "free some space" in str(caught.value.hint)
    digest = digest_of(good)
    if store.concurrent_writers:  # what another writer may be about to use stays, and is no array
        assert list(store.digests()) in ([], [digest])
        assert not store.is_intact(digest)
        assert store.put(good) == digest
        assert store.delete(digest) > 0
    assert list(store.digests()) == []


def test_source_that_changes_between_two_passes_is_found(store: ArrayStore) -> None:
    seeds = count(1)
    with pytest.raises(DamagedError, match="not the bytes written"):
        store.put(ArraySource("float32", (5, 3), lambda: array(seed=next(seeds)).blocks()))


def test_owner_is_what_was_written_down_last(store: ArrayStore) -> None:
    assert store.owner() is None
    store.set_owner("0" * 32)
    assert store.owner() == "0" * 32
    if isinstance(store, ObjectArrays):  # where two catalogs may claim it at once, the first one has it
        with pytest.raises(ConflictError, match=f"its id is {'0' * 32}"):
            store.set_owner("a" * 32)
        store.set_owner("0" * 32)
    else:
        store.set_owner("a" * 32)
        assert store.owner() == "a" * 32
    assert store.owner_problem() is None
    assert list(store.digests()) == []


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "damage", "open", "digests"]), st.integers(0, 3), st.integers(0, 80)),
    max_size=12,
)
ARRAYS = [array("float32", (5, 3), 1), array("bfloat16", (15,), 2), array("int64", (2, 2, 2), 3), array("uint8", (9,))]


@given(STEPS)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_disk_answers_as_memory_does(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    place = tmp_path_factory.mktemp("arrays")
    disk, memory = FolderArrays(place / "arrays"), MemoryArrays()
    bucket = open_arrays(f"memory://{uuid4().hex}", place / "chunks")
    for action, number, position in steps:
        source = ARRAYS[number]
        digest = digest_of(source)
        if action == "damage" and not memory.has(digest):
            continue
        found = []
        for store in (disk, memory, bucket):
            if action == "put":
                answer: Any = store.put(source, compress=position % 2 == 0)
            elif action == "delete":
                answer = store.delete(digest) > 0
            elif action == "damage":
                if store.is_intact(digest):
                    damage(store, digest, position)
                answer = None
            elif action == "open":
                try:
                    answer = content(store.open(digest))
                except (NotFoundError, DamagedError) as error:
                    answer = type(error)
            else:
                answer = list(store.digests())
            found.append((answer, [store.is_intact(d) for d in store.digests()]))
        assert found[0] == found[1] == found[2], (action, number)


@pytest.mark.check
def test_registry_needs_no_more_than_the_contract(
    filled: Registry, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.compose(["math", "code"], tmp_path / "expected")
    with Registry(tmp_path / "other") as registry:
        monkeypatch.setattr(registry, "_workspace", replace(registry._workspace, arrays=MemoryArrays()))
        for name in ("code", "law", "math"):
            registry.add_expert(name, zoo.experts[name])
        registry.compose(["math", "law"], tmp_path / "before")
        done = registry.opt_out("law", purge=True, receipt=tmp_path / "receipt.json")
        assert done.deleted_arrays > 10
        assert registry.verify_receipt(tmp_path / "receipt.json").problems == []
        registry.compose(["math", "code"], tmp_path / "found")
        assert (registry.verify().problems, registry.gc().digests) == ((), ())
    assert files_of(tmp_path / "found") == files_of(tmp_path / "expected")
    assert not os.path.exists("memory")  # noqa: PTH110
