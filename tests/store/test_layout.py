"""Proves: of an array of somebody else's nothing is tried that this program did not write: no codec, type or size."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store.arrays import ArraySource, FolderArrays
from store.arrays import source as module
from store.errors import DamagedError, InvalidInputError

Change = Callable[[Path], object]
CHUNK, BOMB = "c.0.0", (2**40).to_bytes(8, "little")


def described(edit: Callable[[dict[str, Any]], object]) -> Change:
    """Return a change of zarr.json."""

    def change(folder: Path) -> None:
        document = json.loads((folder / "zarr.json").read_bytes())
        edit(document)
        (folder / "zarr.json").write_text(json.dumps(document))

    return change


def written(name: str, data: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(data)


def replaced(name: str, make: Callable[[Path], object]) -> Change:
    """Return a change that puts something else in a file's place."""
    return lambda folder: ((folder / name).rename(folder / "elsewhere"), make(folder / name))


def frame(size: bytes, flags: int) -> bytes:
    """Return the beginning of a zstd frame that says it expands to `size`."""
    return b"\x28\xb5\x2f\xfd" + bytes([flags]) + size + b"\x00" * 20


OBJECTS = {"name": "vlen-utf8", "configuration": {}}
GZIP = {"name": "gzip", "configuration": {"level": 5}}
SLASHES = {"name": "default", "configuration": {"separator": "/"}}


def grid(*chunk: int, shape: tuple[int, ...] = (8, 2)) -> Change:
    """Return a change of the shape of chunks."""
    regular = {"name": "regular", "configuration": {"chunk_shape": list(chunk)}}
    return described(lambda d: d.update(shape=list(shape), chunk_grid=regular))


BAD: dict[str, tuple[Change, str]] = {
    "objects": (described(lambda d: d.update(data_type="variable_length_bytes")), "another data_type"),
    "data type": (described(lambda d: d.update(data_type="float64")), "another data_type"),
    "dtype": (described(lambda d: d.update(attributes={"dtype": "bfloat16"})), "another data_type"),
    "dtype no text": (described(lambda d: d.update(attributes={"dtype": []})), "does not describe an array of this"),
    "object codec": (described(lambda d: d.update(codecs=[OBJECTS])), "another codecs"),
    "another codec": (described(lambda d: d["codecs"].append(GZIP)), "codecs"),
    "no codec": (described(lambda d: d.update(codecs=[])), "another codecs"),
    "pickle codec": (described(lambda d: d.update(codecs=[{"name": "numcodecs.pickle"}])), "another codecs"),
    "big endian": (described(lambda d: d["codecs"][0]["configuration"].update(endian="big")), "another codecs"),
    "no checksum": (described(lambda d: d["codecs"][1]["configuration"].update(checksum=0)), "another codecs"),
    "storage transformer": (described(lambda d: d.update(storage_transformers=[{"name": "x"}])), "another storage_tr"),
    "another key": (described(lambda d: d.update(dimension_names=["a"])), "another dimension_names"),
    "a key less": (described(lambda d: d.pop("fill_value")), "another fill_value"),
    "fill value": (described(lambda d: d.update(fill_value=1)), "another fill_value"),
    "fill value of another type": (described(lambda d: d.update(fill_value=0.0)), "another fill_value"),
    "chunk names": (described(lambda d: d.update(chunk_key_encoding=SLASHES)), "another chunk_key"),
    "zarr 2": (described(lambda d: d.update(zarr_format=2)), "another zarr_format"),
    "attribute": (described(lambda d: d["attributes"].update(x=1)), "another attributes"),
    "shape of nothing": (described(lambda d: d.update(shape=[])), "does not describe an array of this store"),
    "shape of memory": (described(lambda d: d.update(shape=[2**40, 2])), "its content has digest|missing|No such file"),
    "shape of overflow": (described(lambda d: d.update(shape=[2**63, 2])), "does not describe an array of this store"),
    "shape no size": (described(lambda d: d.update(shape=[True, 2])), "does not describe an array of this store"),
    "wider rows": (described(lambda d: d.update(shape=[8, 3])), "another chunk_grid"),
    "parts of rows": (grid(8, 1), "another chunk_grid"),
    "smaller chunks": (grid(2, 2), "holds 128 bytes, 32 were expected"),
    "no chunks": (described(lambda d: d.update(chunk_grid=None)), "does not describe an array"),
    "chunks of memory": (grid(2**40, 2, shape=(2**40, 2)), "describes chunks of 1,099,511,627,776 rows"),
    "rows of memory": (grid(1, 2**30, shape=(1, 2**30)), "describes chunks of 1 rows of 1,073,741,824 elements"),
    "description empty": (written("zarr.json", b""), "zarr.json"),
    "description cut": (written("zarr.json", b"{"), "zarr.json"),
    "description a list": (written("zarr.json", b"[]"), "does not describe an array"),
    "description of nothing": (written("zarr.json", b'{"zarr_format": 3}'), "does not describe an array"),
    "description too large": (written("zarr.json", b" " * (2**16 + 1)), "it has 65,537 bytes"),
    "description deep": (written("zarr.json", b"[" * 60_000), "does not describe an array"),
    "key twice": (written("zarr.json", b'{"shape": [1], "shape": [2]}'), "names a key twice"),
    "description a pipe": (replaced("zarr.json", os.mkfifo), "is not a regular file"),
    "description a link": (replaced("zarr.json", lambda p: p.symlink_to("elsewhere")), "is not a regular file"),
    "chunk missing": (lambda folder: (folder / CHUNK).unlink(), "unreadable"),
    "chunk a pipe": (replaced(CHUNK, os.mkfifo), "is not a regular file"),
    "chunk a link": (replaced(CHUNK, lambda p: p.symlink_to("elsewhere")), "is not a regular file"),
    "chunk a device": (replaced(CHUNK, lambda p: p.symlink_to("/dev/zero")), "is not a regular file"),
    "chunk no frame": (written(CHUNK, b"x" * 100), "is not a zstd frame"),
    "bomb": (written(CHUNK, frame(BOMB, 0xE0)), "holds 1,099,511,627,776 bytes, 128 were expected"),
    "frame of no size": (written(CHUNK, frame(b"\x00", 0x00)), "does not declare its decompressed size"),
    "frame that is cut": (written(CHUNK, b"\x28\xb5\x2f\xfd\xe0\x00"), "does not declare its decompressed size"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_array_of_somebody_else_is_refused_before_zarr_reads_it(tmp_path: Path, case: str) -> None:
    change, message = BAD[case]
    store = FolderArrays(tmp_path)
    source = ArraySource.of(np.arange(16).reshape(8, 2), "int64")
    digest = store.put(source, compress=True)
    assert store.is_intact(digest)
    change(store.path(digest))
    with pytest.raises(DamagedError, match=message):
        list(store.open(digest).blocks())
    with pytest.raises(DamagedError):
        store.sample(digest, np.arange(2))
    assert not store.is_intact(digest)
    assert store.put(source, compress=True) == digest
    assert store.is_intact(digest)


def test_chunk_of_another_size_and_padding_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64)
    store = FolderArrays(tmp_path)
    source = ArraySource.of(np.arange(100), "int64")
    digest = store.put(source)
    last = store.path(digest) / "c.1"
    good = last.read_bytes()
    assert len(good) == 64 * 8
    for data, message in (
        (good[:-1], "holds 511 bytes, 512 were expected"),
        (good + b"\x00", "holds 513 bytes"),
        (good[:-1] + b"\x01", "does not end in zeros"),
    ):
        last.write_bytes(data)
        with pytest.raises(DamagedError, match=message):
            store.read(digest)
    last.write_bytes(good)
    assert (store.read(digest) == np.arange(100)).all()


def test_missing_chunk_of_zeros_is_told(tmp_path: Path) -> None:
    store = FolderArrays(tmp_path)
    digest = store.put(ArraySource.of(np.zeros(4), "float64"))
    (store.path(digest) / "c.0").unlink()
    with pytest.raises(DamagedError, match="unreadable"):
        store.read(digest)


def test_folder_that_is_a_link_is_told_and_deleted_alone(tmp_path: Path) -> None:
    store = FolderArrays(tmp_path / "arrays")
    digest = store.put(ArraySource.of(np.zeros(4), "float64"))
    shutil.move(store.path(digest), tmp_path / "elsewhere")
    store.path(digest).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedError, match="its folder is a symbolic link"):
        store.open(digest)
    store.delete(digest)
    assert (tmp_path / "elsewhere" / "zarr.json").exists()
    assert not store.path(digest).is_symlink()


@pytest.mark.parametrize("digest", ["", "../../x", "0" * 63, "A" * 64, "0" * 64 + "\n", "/etc"])
def test_path_is_made_of_digests_alone(tmp_path: Path, digest: str) -> None:
    for call in (FolderArrays(tmp_path).path, FolderArrays(tmp_path).open, FolderArrays(tmp_path).delete):
        with pytest.raises(DamagedError, match="is not the digest of an array"):
            call(digest)


def test_owner_that_is_no_file_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "registry")
    assert FolderArrays(tmp_path).owner() is None


def test_row_of_too_many_elements_is_not_stored(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot store an array"):
        FolderArrays(tmp_path).put(ArraySource("float32", (1, 2**24 + 1), lambda: iter(())))
