"""Proves: files written by several hands are those of the plain way, and whatever fails in one of them ends all."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from registry import Recipe, Registry
from registry.composition.model_writer import streams_of
from registry.composition.tensor_source import StoredSource
from registry.io import shard_writer as module
from registry.io.safetensors_writer import Span, Stream
from registry.io.shard_writer import Shard, write_shards
from store import arrays
from store.arrays import CARRIERS, ArraySource, ArrayStore
from store.errors import DamagedError, StorageError
from tests.models import make_model, save_checkpoint, sentences, write_jsonl
from tests.registry.io.plain_writer import write_plain


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArrayStore:
    monkeypatch.setattr(arrays, "CHUNK_ELEMENTS", 64)  # several files an array
    monkeypatch.setattr(module, "PIECE", 100)  # several pieces a file
    monkeypatch.setattr(module, "FLUSH_BYTES", 1000)
    return ArrayStore(tmp_path / "arrays")


def random(dtype: str, shape: tuple[int, ...], seed: int) -> ArraySource:
    carrier = np.dtype(CARRIERS[dtype][0])
    size = int(np.prod(shape)) * carrier.itemsize
    bits = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    return ArraySource.of(bits.view(carrier).reshape(shape), dtype)


def stored(store: ArrayStore, name: str, dtype: str, shape: tuple[int, ...], seed: int) -> tuple[Stream, str]:
    digest = store.put(random(dtype, shape, seed))

    def spans() -> list[Span]:
        raw = store.open(digest).raw
        assert raw is not None
        return [Span(raw, 0, raw.nbytes)]

    return Stream(name, dtype, shape, lambda: store.open(digest).blocks(), spans), digest


def made(name: str, dtype: str, shape: tuple[int, ...], seed: int) -> Stream:
    return Stream(name, dtype, shape, random(dtype, shape, seed).blocks)


def two_rows(store: ArrayStore) -> Stream:
    """Return rows 20 to 49 of one array above rows 0 to 9 of another."""
    digests = [store.put(random("int16", (60, 7), seed)) for seed in (7, 8)]

    def spans() -> list[Span]:
        raws = [store.open(digest).raw for digest in digests]
        return [Span(raw, *at) for raw, at in zip(raws, ((280, 700), (0, 140)), strict=True) if raw is not None]

    def blocks() -> Iterator[Any]:
        one, other = (store.read(digest) for digest in digests)
        yield one[20:50]
        yield other[:10]

    return Stream("rows", "int16", (40, 7), blocks, spans)


def several(store: ArrayStore) -> list[Stream]:
    return [
        made("z", "float32", (70, 3), 1),
        stored(store, "c", "bfloat16", (33, 5), 2)[0],
        stored(store, "b", "float64", (100,), 3)[0],
        made("a", "uint8", (9, 2, 2), 4),
        stored(store, "d", "uint8", (301,), 5)[0],
        two_rows(store),
    ]


def test_files_are_those_of_the_plain_way(store: ArrayStore, tmp_path: Path) -> None:
    streams, told = several(store), list[int]()
    shards = [
        Shard(tmp_path / "1", tuple(streams)),
        Shard(tmp_path / "2", tuple(streams[1:3])),
        Shard(tmp_path / "3", ()),
    ]
    digests = write_shards(shards, told.append)
    for shard, digest in zip(shards, digests, strict=True):
        assert write_plain(tmp_path / "plain", shard.given) == digest
        assert (tmp_path / "plain").read_bytes() == shard.path.read_bytes()
    assert sum(told) == sum(shard.nbytes for shard in shards)


def damage(folder: Path) -> None:
    chunk = folder / "c.3"
    data = chunk.read_bytes()
    chunk.write_bytes(data[:8] + bytes([data[8] ^ 1]) + data[9:])


def cut(folder: Path) -> None:
    os.truncate(folder / "c.3", 40)


def lose(folder: Path) -> None:
    (folder / "c.3").unlink()


@pytest.mark.parametrize("harm", [damage, cut, lose])
def test_damaged_array_stops_it(store: ArrayStore, tmp_path: Path, harm: Callable[[Path], None]) -> None:
    stream, digest = stored(store, "b", "float64", (2000,), 3)
    harm(store.path(digest))
    before = threading.active_count()
    with pytest.raises(DamagedError, match=rf"array {digest[:12]} is damaged"):
        write_shards([Shard(tmp_path / "1", (made("a", "float32", (500, 3), 1), stream))], lambda amount: None)
    assert threading.active_count() == before


@pytest.mark.parametrize("rows", [9, 11])
def test_tensor_of_another_size_is_told(store: ArrayStore, tmp_path: Path, rows: int) -> None:
    wrong = Stream("a", "float32", (10,), random("float32", (rows,), 1).blocks)
    with pytest.raises(StorageError, match=rf"tensor a came to {4 * rows} bytes, 40 were expected"):
        write_shards([Shard(tmp_path / "1", (wrong, stored(store, "b", "uint8", (999,), 1)[0]))], lambda amount: None)


@pytest.mark.parametrize("call", ["pwrite", "preadv", "fsync"])
def test_disk_that_refuses_stops_it(
    store: ArrayStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    streams = several(store)

    def refuse(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError, match="No space left on device"):
        write_shards([Shard(tmp_path / "1", tuple(streams))], lambda amount: None)


def test_interrupt_stops_it(store: ArrayStore, tmp_path: Path) -> None:
    def blocks() -> Iterator[Any]:
        yield from random("float32", (5,), 1).blocks()
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        write_shards(
            [Shard(tmp_path / "1", (*several(store), Stream("y", "float32", (9,), blocks)))], lambda amount: None
        )
    assert threading.active_count() == before


@pytest.mark.parametrize("router", ["context", "ridge"])
@pytest.mark.parametrize("family", ["phi3", "llama", "granite"])
def test_composition_is_that_of_the_plain_way(
    registry: Registry, tmp_path: Path, tokenizer: Any, family: str, router: str
) -> None:
    for seed, name in ((1, "code"), (2, "math")):
        folder = save_checkpoint(make_model(family, seed), tmp_path / name, tokenizer)
        registry.add_expert(name, folder, data=[write_jsonl(tmp_path / f"{name}.jsonl", sentences(name, 20))])
    plan = registry.plan(["code", "math"], Recipe(router=router, lam=1.0))
    registry.compose(["code", "math"], tmp_path / "moe", Recipe(router=router, lam=1.0))
    streams = streams_of(StoredSource(plan))
    copied = [stream for stream in streams if stream.spans() is not None]
    assert copied
    write_plain(tmp_path / "plain", streams)
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "moe" / "model.safetensors").read_bytes()
