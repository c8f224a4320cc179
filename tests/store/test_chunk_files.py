"""Proves: the files of an array are byte for byte those that zarr writes, and zarr reads what they hold."""

from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.codecs import ZstdCodec
from zarr.storage import LocalStore

from store.arrays import CARRIERS, ArraySource, FolderArrays, rows_per_block, source


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(
    ("dtype", "shape"), [("int64", (37,)), ("bfloat16", (7, 3)), ("float32", (5,)), ("uint8", (9, 2, 2))]
)
def test_files_are_those_of_zarr(
    dtype: str, shape: tuple[int, ...], compress: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "CHUNK_ELEMENTS", 10)  # several chunks, the last one padded
    carrier = CARRIERS[dtype][0]
    data = np.random.default_rng(0).integers(0, 100, shape).astype(carrier)
    store = FolderArrays(tmp_path / "ours")
    ours = store.path(store.put(ArraySource.of(data, dtype), compress=compress))
    theirs = tmp_path / "theirs"
    array = zarr.create_array(
        LocalStore(theirs),
        shape=shape,
        chunks=(rows_per_block(shape), *shape[1:]),
        dtype=np.dtype(carrier),
        filters=None,
        compressors=ZstdCodec(level=0, checksum=False) if compress else None,
        chunk_key_encoding={"name": "default", "separator": "."},
        attributes={"dtype": dtype},
        config={"write_empty_chunks": True},
    )
    array[...] = data
    assert {path.name: path.read_bytes() for path in ours.iterdir()} == {
        path.name: path.read_bytes() for path in theirs.iterdir()
    }
    assert np.array_equal(zarr.open_array(LocalStore(ours, read_only=True), mode="r")[...], data)
    assert np.array_equal(store.read(ours.name), data)
