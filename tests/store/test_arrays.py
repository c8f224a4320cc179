"""Proves: on disk equal content is stored once, and damage is never returned; what any store promises: the contract."""

import json
from pathlib import Path

import numpy as np
import pytest

from store import arrays as module
from store.arrays import CARRIERS, ArraySource, ArrayStore, blocks_of_rows, digest_of, rows_per_block
from store.errors import DamagedError


@pytest.fixture
def store(tmp_path: Path) -> ArrayStore:
    return ArrayStore(tmp_path / "arrays")


def array(dtype: str = "float32", shape: tuple[int, ...] = (5, 3), seed: int = 0) -> ArraySource:
    """Return random bits of a dtype."""
    carrier = np.dtype(CARRIERS[dtype][0])
    size = int(np.prod(shape)) * carrier.itemsize
    bits = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    return ArraySource.of(bits.view(carrier).reshape(shape), dtype)


def content(source: ArraySource) -> bytes:
    return b"".join(block.tobytes() for block in source.blocks())


def test_many_chunks_come_back_and_have_the_digest_of_one(store: ArrayStore, monkeypatch: pytest.MonkeyPatch) -> None:
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
    store: ArrayStore, dtype: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64)
    digest = store.put(array(dtype, shape))
    source = store.open(digest)
    assert source.raw is not None
    direct = [block.copy() for block in source.blocks()]
    monkeypatch.setattr(module, "raw_form", lambda *_: None)
    plain = store.open(digest)
    assert plain.raw is None
    for ours, theirs in zip(direct, plain.blocks(), strict=True):
        assert (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())


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
def test_description_of_another_layout_never_gives_other_bytes(store: ArrayStore, key: str, value: object) -> None:
    digest = store.put(array())
    path = store.path(digest) / "zarr.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {key: value}))
    assert not store.is_intact(digest)


def test_equal_content_is_stored_once_and_not_written_again(store: ArrayStore) -> None:
    digest = store.put(array())
    before = {path: path.stat().st_mtime_ns for path in store.path(digest).rglob("*")}
    assert store.put(array()) == digest
    assert {path: path.stat().st_mtime_ns for path in store.path(digest).rglob("*")} == before
    assert list(store.digests()) == [digest]


def test_array_of_zeros_has_its_chunk_on_disk(store: ArrayStore) -> None:
    digest = store.put(ArraySource.of(np.zeros((4, 4), dtype=np.float32), "float32"))
    assert (store.path(digest) / "c.0.0").stat().st_size == 64


def test_incomplete_array_of_a_crash_is_mended_by_the_next_put(store: ArrayStore) -> None:
    source = array()
    digest = store.put(source)
    (store.path(digest) / "c.0.0").unlink()
    assert not store.is_intact(digest)
    assert store.put(source) == digest
    assert store.is_intact(digest)


@pytest.mark.parametrize("compress", [False, True])
def test_any_flipped_bit_is_found(store: ArrayStore, compress: bool) -> None:
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
def test_unreadable_description_is_found(store: ArrayStore, metadata: bytes | str) -> None:
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


def test_strange_files_are_no_arrays(store: ArrayStore) -> None:
    digest = store.put(array())
    (store.root / "notes.txt").write_text("x")
    (store.root / digest[:2] / "notes").mkdir()
    (store.root / "00").mkdir()
    (store.root / "00" / ("f" * 64)).mkdir()
    assert list(store.digests()) == [digest]


@pytest.mark.parametrize("rows", [1, 3, 9, 1000])
def test_few_rows_at_a_time_are_the_array_and_are_checked(
    store: ArrayStore, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64)  # nine rows a file
    data = np.arange(100 * 7, dtype=np.uint16).reshape(100, 7)
    digest = store.put(ArraySource.of(data, "bfloat16"))
    raw = store.open(digest).raw
    assert raw is not None
    blocks = list(blocks_of_rows(raw, rows))
    assert max(map(len, blocks)) == min(rows, raw.height)
    assert np.array_equal(np.concatenate(blocks), data)
    chunk = raw.layout.chunk(raw.folder, raw.count - 1)
    chunk.write_bytes(b"\x01" + chunk.read_bytes()[1:])
    with pytest.raises(DamagedError, match="is damaged: its content has digest"):
        list(blocks_of_rows(raw, rows))
