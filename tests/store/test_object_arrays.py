"""Proves: arrays in a bucket are written by conditional creates alone, by several at once, and zarr reads them."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import numpy as np
import obstore
import pytest
import zarr
from numcodecs.zstd import Zstd
from zarr.storage import LocalStore, ObjectStore

from store import bucket
from store.arrays import ArraySource, FolderArrays, digest_of, open_arrays
from store.arrays import source as module
from store.arrays.object_arrays import ObjectArrays
from store.errors import ConflictError, DamagedError, InvalidInputError, NotFoundError
from store.object_store import open_store
from tests.conftest import files_of
from tests.s3_server import S3Server
from tests.store.test_arrays import array, content


@pytest.fixture
def store(arrays_url: str, tmp_path: Path) -> ObjectArrays:
    found = open_arrays(arrays_url, tmp_path / "chunks")
    assert isinstance(found, ObjectArrays)
    return found


def files_in(s3: S3Server, url: str) -> dict[str, bytes]:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return s3.objects(bucket, prefix)


@pytest.mark.parametrize("compress", [False, True])
def test_objects_are_the_files_of_a_folder_and_zarr_reads_them(
    store: ObjectArrays, s3: S3Server, tmp_path: Path, compress: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64)
    source, folder = array("int64", (100, 7)), FolderArrays(tmp_path / "arrays")
    digest = store.put(source, compress=compress)
    assert folder.put(source, compress=compress) == digest
    assert files_in(s3, store.place) == files_of(folder.root)
    theirs = zarr.open_array(ObjectStore(open_store(f"{store.place}/{digest[:2]}/{digest}"), read_only=True), mode="r")
    assert np.asarray(theirs[...]).tobytes() == content(source)
    assert (np.asarray(zarr.open_array(LocalStore(folder.path(digest)), mode="r")[...]) == store.read(digest)).all()


def test_description_is_written_last_and_deleted_first(store: ObjectArrays, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64)
    with (
        patch.object(obstore, "put", wraps=obstore.put) as put,
        patch.object(obstore, "delete", wraps=obstore.delete) as delete,
    ):
        store.delete(store.put(array(shape=(100, 7))))
    written = [call.args[1] for call in put.call_args_list]
    deleted = [key for call in delete.call_args_list for key in call.args[1]]
    assert written[-1].endswith("/zarr.json")
    assert len(written) == 13
    assert deleted[0] == written[-1]
    assert sorted(deleted) == sorted(written)


@pytest.mark.parametrize("left", [b"", b"x" * 60, b"x" * 7])
def test_other_bytes_in_place_of_a_chunk_are_replaced(store: ObjectArrays, left: bytes) -> None:
    digest = digest_of(array())
    store.bucket.put(f"{digest[:2]}/{digest}/c.0.0", left)
    assert store.put(array()) == digest
    assert content(store.open(digest)) == content(array())


def test_frame_of_another_compressor_is_kept_if_it_holds_the_same(store: ObjectArrays) -> None:
    source = ArraySource.of(np.arange(400), "int64")
    other = bytes(Zstd(level=9).encode(np.arange(400).tobytes()))
    key = f"{digest_of(source)[:2]}/{digest_of(source)}/c.0"
    store.bucket.put(key, other)
    assert store.put(source, compress=True) == digest_of(source)
    assert store.bucket.read(key) == other
    assert content(store.open(digest_of(source))) == content(source)


def test_writers_of_the_same_array_all_succeed(
    arrays_url: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64)
    stores = [open_arrays(arrays_url) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        digests = list(pool.map(lambda store: store.put(array(shape=(200, 7)), compress=True), stores))
    assert set(digests) == {digest_of(array(shape=(200, 7)))}
    folder = FolderArrays(tmp_path)
    folder.put(array(shape=(200, 7)), compress=True)
    assert files_in(s3, arrays_url) == files_of(tmp_path)


def test_one_of_two_catalogs_that_claim_at_once_has_the_arrays(arrays_url: str) -> None:
    def claim(owner: str) -> str | None:
        try:
            open_arrays(arrays_url).set_owner(owner)
        except ConflictError:
            return None
        return owner

    with ThreadPoolExecutor(8) as pool:
        won = set(pool.map(claim, [f"{number:032x}" for number in range(8)])) - {None}
    assert won == {open_arrays(arrays_url).owner()}


def test_large_chunks_are_read_by_ranges(store: ObjectArrays, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 2**20)
    monkeypatch.setattr(bucket, "RANGE_BYTES", 2**21)
    data = np.random.default_rng(0).integers(0, 2**60, 5 * 2**18)  # two chunks of 8 MiB, of which one is padded
    digest = store.put(ArraySource.of(data, "int64"))
    with patch.object(obstore, "get_ranges", wraps=obstore.get_ranges) as ranges:
        for _ in range(2):  # the second time from the copies
            assert store.read(digest).tobytes() == data.tobytes()
    assert [len(call.kwargs["starts"]) for call in ranges.call_args_list] == [4, 4]
    store.bucket.put(f"{digest[:2]}/{digest}/c.0", bytes(2**23))
    assert not store.is_intact(digest)
    assert store.put(ArraySource.of(data, "int64")) == digest
    assert store.is_intact(digest)


def test_bucket_that_lies_is_found_though_there_is_a_copy(store: ObjectArrays) -> None:
    digest = store.put(array())
    assert content(store.open(digest)) == content(array())
    store.bucket.put(f"{digest[:2]}/{digest}/c.0.0", bytes(60))
    assert content(store.open(digest)) == content(array())  # the copy
    assert not store.is_intact(digest)
    assert store.cache is not None
    store.cache.drop(digest)
    with pytest.raises(DamagedError, match="its content has digest"):
        store.read(digest)
    assert store.cache.digests() == []  # what was wrong is not kept


@pytest.mark.parametrize("harm", [b"", b"\x00" * 60, b"x" * 61, None])
def test_damaged_copy_is_dropped_and_fetched_again(store: ObjectArrays, harm: bytes | None) -> None:
    assert store.cache is not None
    digest = store.put(array())
    store.read(digest)
    copy = store.cache.path(digest, "c.0.0")
    if harm is None:
        copy.unlink()
        copy.symlink_to("/dev/zero")
    else:
        copy.write_bytes(harm)
    if harm == b"\x00" * 60:  # of the right size: only the digest tells
        with pytest.raises(DamagedError, match="its content has digest"):
            store.read(digest)
    assert content(store.open(digest)) == content(array())


_WRITER = """
import os, signal, sys
import obstore
import numpy as np
from store.arrays import ArraySource, open_arrays, source
source.CHUNK_ELEMENTS = 64
put, left = obstore.put, int(sys.argv[2])
def dying(*args, **more):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return put(*args, **more)
obstore.put = dying
open_arrays(sys.argv[1]).put(ArraySource.of(np.arange(100 * 7, dtype=np.float32).reshape(100, 7), "float32"))
"""


@pytest.mark.trust(after=3)
@pytest.mark.parametrize("writes", [0, 1, 5, 11, 12])
def test_killed_writer_leaves_what_the_next_completes(
    arrays_url: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64)
    words = [sys.executable, "-c", _WRITER, arrays_url, str(writes)]
    process = subprocess.run(words, env={**os.environ, "PYTHONPATH": "."})
    assert process.returncode == -signal.SIGKILL
    source = ArraySource.of(np.arange(100 * 7, dtype=np.float32).reshape(100, 7), "float32")
    digest, store = digest_of(source), open_arrays(arrays_url)
    left = files_in(s3, arrays_url)
    assert writes - 4 < len(left) <= writes  # some are written at once
    with pytest.raises(NotFoundError, match="is not below"):
        store.open(digest)
    assert not store.is_intact(digest)
    assert store.has(digest) is bool(left)
    assert list(store.digests()) == [digest] * bool(left)
    assert store.put(source) == digest
    assert content(store.open(digest)) == content(source)
    assert store.delete(digest) > 0
    assert files_in(s3, arrays_url) == {}


def test_strange_objects_are_no_arrays(store: ObjectArrays) -> None:
    digest = store.put(array())
    for key in ("notes.txt", f"{digest[:2]}/notes", f"00/{'f' * 64}/c.0", "registry"):
        store.bucket.put(key, b"x")
    assert list(store.digests()) == [digest]
    assert store.owner() is None
    assert "is damaged" in str(store.owner_problem())
    store.set_owner("a" * 32)
    assert store.owner() == "a" * 32


def test_url_of_no_bucket_is_refused() -> None:
    for url in ("ftp://bucket/x", "s3://", "s3:///x", "s3://bucket/../x", "s3://bucket/a b"):
        with pytest.raises(InvalidInputError):
            open_arrays(url)


def test_what_is_done_ahead_comes_in_order_and_ends_with_the_first_failure() -> None:
    pool = ThreadPoolExecutor(4)
    assert list(bucket.ahead(pool, 4, lambda n: n * n, range(50))) == [n * n for n in range(50)]

    def failing(number: int) -> int:
        if number == 7:
            raise OSError("seven")
        return number

    results = bucket.ahead(pool, 4, failing, range(50))
    assert [next(results) for _ in range(7)] == list(range(7))
    with pytest.raises(OSError, match="seven"):
        next(results)
    pool.shutdown()


def test_description_and_chunks_larger_than_an_array_has_are_not_read(store: ObjectArrays) -> None:
    digest = store.put(ArraySource.of(np.zeros((2, 3), np.float32), "float32"), compress=True)
    for name in ("c.0.0", "zarr.json"):
        store.bucket.put(f"{digest[:2]}/{digest}/{name}", bytes(2**17))
        with pytest.raises(DamagedError, match=r"has 131,072 bytes"):
            store.read(digest)
