"""Proves: a tree digest covers every byte of a file, in whatever way it is taken, and nothing else passes for one."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from registry.errors import CheckpointError
from registry.io import tree_digest as module
from registry.io.disk import file_digest
from registry.io.tree_digest import TreeHash, digest_like, tree_and_sha256, tree_digest
from store.arrays import new_hash
from tests.digests import tree_of


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "_PIECE", 100)
    tensors = {
        "b": torch.arange(300, dtype=torch.float32).reshape(30, 10),
        "empty": torch.zeros(0, 4),
        "a": torch.arange(77, dtype=torch.bfloat16),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "bytes": torch.arange(5, dtype=torch.uint8),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("step", [1, 7, 1000, 10**6])
def test_all_ways_agree(file: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, read = file.read_bytes(), list[int]()
    expected = tree_of(data)
    assert tree_digest(file, read.append) == expected == digest_like(file, expected)
    assert sum(read) == len(data)
    state = TreeHash(file, len(data))
    for start in range(0, len(data), step):
        state.update(data[start : start + step])
    assert state.hexdigest() == expected
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        state.update(b"x")  # bytes that follow
    monkeypatch.setattr(module, "CHUNK", step)
    assert tree_and_sha256(file) == (expected, file_digest(file))
    assert digest_like(file, file_digest(file)) == file_digest(file)


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("first", range(8))
def test_every_byte_counts(file: Path, first: int) -> None:
    data = file.read_bytes()
    expected = tree_of(data)
    for at in range(first, len(data), 8):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            assert tree_digest(file) != expected
        except CheckpointError:
            assert at < 8 + int.from_bytes(data[:8], "little")  # the header is no longer one


def test_two_tensors_that_change_places_count(tmp_path: Path) -> None:
    ones, zeros = torch.ones(4), torch.zeros(4)
    save_file({"a": ones, "b": zeros}, tmp_path / "one")
    save_file({"a": zeros, "b": ones}, tmp_path / "other")
    assert tree_digest(tmp_path / "one") != tree_digest(tmp_path / "other")


def described(header: object, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


ENTRY = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "claims 0 bytes, the file has 0"),
    "short": (b"\1\0", "the file has 2"),
    "no header": (bytes(8), "its header is not a JSON object"),
    "longer header": ((1000).to_bytes(8, "little") + b"{}", "claims 1,000 bytes, the file has 10"),
    "huge header": ((2**63).to_bytes(8, "little") + b"{}", "the file has 10"),
    "not JSON": ((2).to_bytes(8, "little") + b"{{", "is not a safetensors file"),
    "gap": (described({"a": ENTRY | {"data_offsets": [1, 3]}}, b"abc"), "begins at byte"),
    "overlap": (described({"a": ENTRY, "b": ENTRY}, b"ab"), "begins at byte"),
    "more bytes": (described({"a": ENTRY}, b"abc"), "its tensors end at byte"),
    "fewer bytes": (described({"a": ENTRY}, b"a"), "its tensors end at byte"),
    "dtype": (described({"a": ENTRY | {"dtype": "F8_E5M2"}}, b"ab"), "dtype F8_E5M2, which no composition has"),
}


def streamed(path: Path) -> str:
    state = TreeHash(path, path.stat().st_size)
    state.update(path.read_bytes())
    return state.hexdigest()


@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_other_files_have_none(tmp_path: Path, case: str) -> None:
    data, message = HOSTILE[case]
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(CheckpointError, match="is not a safetensors file") as raised:
        tree_digest(tmp_path / "x")
    assert message in raised.value.message
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        streamed(tmp_path / "x")


def test_file_that_is_cut_while_it_is_read_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_first(dtype: str, shape: tuple[int, ...]) -> object:
        os.truncate(file, file.stat().st_size - 1)
        return new_hash(dtype, shape)

    monkeypatch.setattr(module, "new_hash", cut_first)
    with pytest.raises(CheckpointError, match="it ends early"):
        tree_digest(file)
