"""Proves: on disk equal content is stored once, in the files that zarr writes, and damage is never returned.

What any store promises is in the contract.
"""

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.codecs import ZstdCodec
from zarr.storage import LocalStore

from store.arrays import CARRIERS, ArraySource, FolderArrays, array_store, blocks_of_rows, digest_of, rows_per_block
from store.arrays import source as module
from store.errors import DamagedError
from tests.conftest import files_of


@pytest.fixture
def store(tmp_path: Path) -> FolderArrays:
    return FolderArrays(tmp_path / "arrays")


def array(dtype: str = "float32", shape: tuple[int, ...] = (5, 3), seed: int = 0) -> ArraySource:
    """Return random bits of a dtype."""
    carrier = np.dtype(CARRIERS[dtype][0])
    size = int(np.prod(shape)) * carrier.itemsize
    bits = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    return ArraySource.of(bits.view(carrier).reshape(shape), dtype)


def content(source: ArraySource) -> bytes:
    return b"".join(block.tobytes() for block in source.blocks())


def test_many_chunks_come_back_and_have_the_digest_of_one(store: FolderArrays, monkeypatch: pytest.MonkeyPatch) -> None:
    source = array(shape=(100, 7))
    digest = digest_of(source)
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64)
    assert rows_per_block((100, 7)) == 9
    assert store.put(source) == digest
    assert len(list(store.path(digest).glob("c.*"))) == 12
    assert content(store.open(digest)) == content(source)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("dtype", sorted(CARRIERS))
def test_files_are_those_of_zarr_and_read_as_zarr_reads_them(
    store: FolderArrays, tmp_path: Path, dtype: str, compress: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 10)  # several chunks, the last one padded
    for shape in ((1,), (37,), (33, 5), (9, 2, 2)):
        data = np.concatenate(list(array(dtype, shape).blocks()))
        data[: len(data) // 2] = 0  # a chunk of zeros has its file, too
        digest = store.put(ArraySource.of(data, dtype), compress=compress)
        theirs = zarr.create_array(
            LocalStore(tmp_path / str(shape)),
            shape=shape,
            chunks=(rows_per_block(shape), *shape[1:]),
            dtype=data.dtype,
            filters=None,
            compressors=ZstdCodec(level=0, checksum=False) if compress else None,
            chunk_key_encoding={"name": "default", "separator": "."},
            attributes={"dtype": dtype},
            config={"write_empty_chunks": True},
        )
        theirs[...] = data
        assert files_of(store.path(digest)) == files_of(tmp_path / str(shape))
        decoded = zarr.open_array(LocalStore(store.path(digest), read_only=True), mode="r")[...]
        for found in (decoded, store.read(digest)):
            assert isinstance(found, np.ndarray)
            assert (found.dtype, found.shape, found.tobytes()) == (data.dtype, shape, data.tobytes())
        assert (store.open(digest).raw is None) is compress
        with monkeypatch.context() as patch:
            patch.setattr(array_store, "_COPIED", False)  # as on a machine of the other byte order
            plain = store.open(digest)
            assert plain.raw is None
            assert content(plain) == data.tobytes()


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("elements", [10, 64, 1000])
def test_chunks_of_another_size_are_read_in_blocks_of_todays(
    store: FolderArrays, compress: bool, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 60)
    digest = store.put(array(shape=(100, 7)), compress=compress)
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", elements)
    back = store.open(digest)
    assert back.raw is None
    blocks = list(back.blocks())
    assert {len(block) for block in blocks[:-1]} <= {rows_per_block((100, 7))}
    assert b"".join(block.tobytes() for block in blocks) == content(array(shape=(100, 7)))


def test_equal_content_is_stored_once_and_not_written_again(store: FolderArrays) -> None:
    digest = store.put(array())
    before = {path: path.stat().st_mtime_ns for path in store.path(digest).rglob("*")}
    assert store.put(array()) == digest
    assert {path: path.stat().st_mtime_ns for path in store.path(digest).rglob("*")} == before
    assert list(store.digests()) == [digest]


@pytest.mark.parametrize("compress", [False, True])
def test_any_flipped_bit_is_found(store: FolderArrays, compress: bool) -> None:
    digest = store.put(array("int64", (16,)), compress=compress)
    chunk = store.path(digest) / "c.0"
    good = chunk.read_bytes()
    for position in range(0, len(good), 5):
        chunk.write_bytes(good[:position] + bytes([good[position] ^ 4]) + good[position + 1 :])
        with pytest.raises(DamagedError, match=rf"array {digest[:12]} is damaged"):
            store.read(digest)
    chunk.write_bytes(good)
    assert store.is_intact(digest)


def test_strange_files_are_no_arrays(store: FolderArrays) -> None:
    digest = store.put(array())
    (store.root / "notes.txt").write_text("x")
    (store.root / digest[:2] / "notes").mkdir()
    (store.root / "00").mkdir()
    (store.root / "00" / ("f" * 64)).mkdir()
    assert list(store.digests()) == [digest]


@pytest.mark.parametrize("rows", [1, 3, 9, 1000])
def test_few_rows_at_a_time_are_the_array_and_are_checked(
    store: FolderArrays, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64)  # nine rows a file
    data = np.arange(100 * 7, dtype=np.uint16).reshape(100, 7)
    digest = store.put(ArraySource.of(data, "bfloat16"))
    raw = store.open(digest).raw
    assert raw is not None
    blocks = list(blocks_of_rows(raw, rows))
    assert max(map(len, blocks)) == min(rows, raw.layout.height)
    assert np.array_equal(np.concatenate(blocks), data)
    chunk = store.path(digest) / raw.layout.chunk_name(raw.layout.count - 1)
    chunk.write_bytes(b"\x01" + chunk.read_bytes()[1:])
    with pytest.raises(DamagedError, match="is damaged: its content has digest"):
        list(blocks_of_rows(raw, rows))


def test_arrays_are_written_and_read_in_a_process_that_was_forked(store: FolderArrays) -> None:
    first, second = array(), array("int64", (4, 2))
    digest = store.put(first, compress=True)

    def write_and_read() -> None:
        assert store.read(digest).tobytes() == content(first)
        store.put(second, compress=True)

    child = multiprocessing.get_context("fork").Process(target=write_and_read)
    child.start()
    child.join(60)
    child.kill()
    assert child.exitcode == 0
    assert store.read(digest_of(second)).tobytes() == content(second)
