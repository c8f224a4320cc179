"""Proves: on disk equal content is stored once, and damage is never returned; what any store promises: the contract."""

import json
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

from store.arrays import CARRIERS, ArraySource, FolderArrays, array_store, blocks_of_rows, digest_of, rows_per_block
from store.arrays import source as module
from store.errors import DamagedError


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


@pytest.mark.parametrize("dtype", sorted(CARRIERS))
@pytest.mark.parametrize("shape", [(1,), (200,), (33, 5), (9, 2, 4)])
def test_files_read_directly_are_what_zarr_reads(
    store: FolderArrays, dtype: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64)
    digest = store.put(array(dtype, shape))
    source = store.open(digest)
    assert source.raw is not None
    theirs = zarr.open_array(LocalStore(store.path(digest), read_only=True), mode="r")[...]
    assert isinstance(theirs, np.ndarray)
    ours = store.read(digest)
    assert (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
    monkeypatch.setattr(array_store, "raw_form", lambda *_: None)  # as on a machine of the other byte order
    plain = store.open(digest)
    assert plain.raw is None
    for direct, decoded in zip(source.blocks(), plain.blocks(), strict=True):
        assert (direct.dtype, direct.shape, direct.tobytes()) == (decoded.dtype, decoded.shape, decoded.tobytes())


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


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shape", []),
        ("shape", [5, 4]),
        ("shape", [True, 3]),
        ("codecs", [{"name": "bytes", "configuration": {"endian": "big"}}]),
        ("codecs", []),
        ("data_type", "float64"),
        ("chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [5, 2]}}),
        ("chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [2, 3]}}),
        ("chunk_grid", None),
        ("attributes", {"dtype": []}),
        ("storage_transformers", [{"name": "x"}]),
    ],
)
def test_description_of_another_layout_never_gives_other_bytes(store: FolderArrays, key: str, value: object) -> None:
    digest = store.put(array())
    path = store.path(digest) / "zarr.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {key: value}))
    assert not store.is_intact(digest)


def test_equal_content_is_stored_once_and_not_written_again(store: FolderArrays) -> None:
    digest = store.put(array())
    before = {path: path.stat().st_mtime_ns for path in store.path(digest).rglob("*")}
    assert store.put(array()) == digest
    assert {path: path.stat().st_mtime_ns for path in store.path(digest).rglob("*")} == before
    assert list(store.digests()) == [digest]


def test_array_of_zeros_has_its_chunk_on_disk(store: FolderArrays) -> None:
    digest = store.put(ArraySource.of(np.zeros((4, 4), dtype=np.float32), "float32"))
    assert (store.path(digest) / "c.0.0").stat().st_size == 64


def test_incomplete_array_of_a_crash_is_mended_by_the_next_put(store: FolderArrays) -> None:
    source = array()
    digest = store.put(source)
    (store.path(digest) / "c.0.0").unlink()
    assert not store.is_intact(digest)
    assert store.put(source) == digest
    assert store.is_intact(digest)


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


@pytest.mark.parametrize(
    "metadata",
    [b"", b"{", b"[]", b'{"zarr_format": 3}', "dtype", "object"],
    ids=["empty", "cut", "list", "no array", "other dtype", "other carrier"],
)
def test_unreadable_description_is_found(store: FolderArrays, metadata: bytes | str) -> None:
    digest = store.put(array())
    path = store.path(digest) / "zarr.json"
    document = json.loads(path.read_bytes())
    if metadata == "dtype":
        document["attributes"]["dtype"] = "bfloat16"
    if metadata == "object":
        document["data_type"] = "variable_length_bytes"
    path.write_bytes(metadata if isinstance(metadata, bytes) else json.dumps(document).encode())
    with pytest.raises(DamagedError, match=r"zarr\.json"):
        store.open(digest)


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
    assert max(map(len, blocks)) == min(rows, raw.height)
    assert np.array_equal(np.concatenate(blocks), data)
    chunk = raw.layout.chunk(store.path(digest), raw.count - 1)
    chunk.write_bytes(b"\x01" + chunk.read_bytes()[1:])
    with pytest.raises(DamagedError, match="is damaged: its content has digest"):
        list(blocks_of_rows(raw, rows))
