"""Proves: every array store keeps the contract: a folder, and a bucket in memory or on a server."""

import errno
from collections.abc import Iterator
from itertools import count, product
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from store.arrays import CARRIERS, ArraySource, ArrayStore, Block, FolderArrays, digest_of, open_arrays
from store.arrays import source as module
from store.arrays.object_arrays import ObjectArrays
from store.errors import ConflictError, DamagedError, InvalidInputError, NotFoundError, StorageError
from tests.store.test_arrays import array, content


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.check)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArrayStore:
    if request.param == "folder":
        return FolderArrays(tmp_path / "arrays")
    url = f"memory://{uuid4().hex}/team" if request.param == "memory" else request.getfixturevalue("arrays_url")
    return open_arrays(url, tmp_path / "chunks")


def damage(store: ArrayStore, digest: str, position: int) -> None:
    """Flip a bit of what a store holds of an array."""
    if isinstance(store, ObjectArrays):
        key = min(key for key, _ in store.bucket.walk(f"{digest[:2]}/{digest}") if "/c." in key)
        content = bytearray(store.bucket.read(key) or b"")
        content[position % len(content)] ^= 4
        store.bucket.put(key, bytes(content))
        return
    assert isinstance(store, FolderArrays)
    chunk = min(store.path(digest).glob("c.*"))
    data = bytearray(chunk.read_bytes())
    data[position % len(data)] ^= 4
    chunk.write_bytes(data)


def test_every_bit_comes_back(store: ArrayStore) -> None:
    for dtype, shape, compress in product(sorted(CARRIERS), ((1,), (7,), (4, 6), (3, 2, 5)), (False, True)):
        source = array(dtype, shape, seed=compress)
        digest = store.put(source, compress=compress)
        assert digest == digest_of(source)
        back = store.open(digest)
        assert (back.dtype, back.shape, back.nbytes) == (dtype, shape, source.nbytes)
        assert content(back) == content(source)
        assert store.read(digest).tobytes() == content(source)


def test_digest_tells_dtype_and_shape_apart_and_what_is_deleted_is_gone(store: ArrayStore) -> None:
    zeros = np.zeros((2, 6), dtype=np.uint16)
    sources = [
        ArraySource.of(zeros, "bfloat16"),
        ArraySource.of(zeros.view(np.float16), "float16"),
        ArraySource.of(zeros.reshape(3, 4), "bfloat16"),
        ArraySource.of(zeros.reshape(12), "bfloat16"),
    ]
    digests = sorted(store.put(source) for source in sources)
    assert list(store.digests()) == digests
    assert len({*digests}) == 4
    size = store.disk_bytes(digests[0])
    assert (size >= 24, store.delete(digests[0])) == (True, size)
    assert list(store.digests()) == digests[1:]
    assert (store.has(digests[0]), store.is_intact(digests[1])) == (False, True)


def test_rows_are_sampled_across_chunks(store: ArrayStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64)
    source = array("bfloat16", (100, 7))
    digest = store.put(source)
    rows = np.array([0, 8, 9, 50, 99])
    assert np.array_equal(store.sample(digest, rows), store.read(digest)[rows])


def test_absent_array_is_told(store: ArrayStore) -> None:
    with pytest.raises(NotFoundError, match="array 000000000000 is not below"):
        store.open("0" * 64)
    with pytest.raises(DamagedError, match="array 000000000000 is damaged: it cannot be sampled"):
        store.sample("0" * 64, np.array([0, 8]))
    assert not store.is_intact("0" * 64)
    assert not store.has("0" * 64)
    assert (store.disk_bytes("0" * 64), store.delete("0" * 64)) == (0, 0)


def test_what_cannot_be_stored_is_refused(store: ArrayStore) -> None:
    for dtype, shape in (("complex64", (1,)), ("float32", ()), ("float32", (0, 3))):
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

    told = r"\(48 bytes\) cannot be written below .*: No space left on device"
    with pytest.raises(StorageError, match=told) as caught:
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
    st.tuples(st.sampled_from(["put", "delete", "damage", "open"]), st.integers(0, 3), st.integers(0, 80)), max_size=12
)
ARRAYS = [array("float32", (5, 3), 1), array("bfloat16", (15,), 2), array("int64", (2, 2, 2), 3), array("uint8", (9,))]


@given(STEPS)
@example([("put", 0, 0), ("open", 0, 0), ("damage", 0, 0), ("open", 0, 0)])
def test_stores_answer_as_a_dictionary_does(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    place, intact, copied = tmp_path_factory.mktemp("arrays"), dict[str, bool](), set[str]()
    stores = FolderArrays(place / "arrays"), open_arrays(f"memory://{uuid4().hex}", place / "chunks")
    for action, number, position in steps:
        source = ARRAYS[number]
        digest = digest_of(source)
        for store in stores:
            if action == "put":
                assert store.put(source, compress=position % 2 == 0) == digest
            elif action == "delete":
                assert (store.delete(digest) > 0) is (digest in intact)
            elif action == "open" and (intact.get(digest) or (digest in copied and store is stores[1])):
                assert content(store.open(digest)) == content(source)
            elif action == "open":
                with pytest.raises(DamagedError if digest in intact else NotFoundError):
                    content(store.open(digest))
            elif intact.get(digest):
                damage(store, digest, position)
        if action == "open" and intact.get(digest):
            copied.add(digest)  # of a bucket: this copy, which is checked, answers when objects are damaged
        elif action == "delete" or (action == "put" and not intact.get(digest)):
            copied.discard(digest)
        if action == "put" or (action == "damage" and digest in intact):
            intact[digest] = action == "put"
        elif action == "delete":
            intact.pop(digest, None)
        for store in stores:
            assert {found: store.is_intact(found) for found in store.digests()} == intact, (action, number)
            assert list(store.digests()) == sorted(intact)
