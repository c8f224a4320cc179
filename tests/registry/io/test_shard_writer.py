"""Proves: files written by several hands are those of the plain way, and whatever fails in one of them ends all."""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from registry import Recipe, Registry
from registry.composition.model_writer import streams_of
from registry.composition.tensor_source import StoredSource
from registry.io import shard_writer as module
from registry.io.safetensors_writer import Span, Stream
from registry.io.shard_writer import Shard, write_shards
from registry.io.tree_digest import tree_digest
from store.arrays import CARRIERS, ArraySource, FolderArrays, source
from store.arrays.raw_chunks import fill
from store.errors import DamagedError, StorageError
from tests.models import make_model, save_checkpoint, sentences, write_jsonl
from tests.registry.io.plain_writer import write_plain


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderArrays:
    monkeypatch.setattr(source, "CHUNK_ELEMENTS", 64)  # several files an array
    monkeypatch.setattr(module, "PIECE", 100)  # several pieces a file
    monkeypatch.setattr(module, "FLUSH_BYTES", 1000)
    return FolderArrays(tmp_path / "arrays")


def random(dtype: str, shape: tuple[int, ...], seed: int) -> ArraySource:
    carrier = np.dtype(CARRIERS[dtype][0])
    size = int(np.prod(shape)) * carrier.itemsize
    bits = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    return ArraySource.of(bits.view(carrier).reshape(shape), dtype)


def stored(store: FolderArrays, name: str, dtype: str, shape: tuple[int, ...], seed: int) -> tuple[Stream, str]:
    digest = store.put(random(dtype, shape, seed))

    def spans() -> list[Span]:
        raw = store.open(digest).raw
        assert raw is not None
        return [Span(raw, 0, raw.nbytes)]

    return Stream(name, dtype, shape, lambda: store.open(digest).blocks(), spans), digest


def made(name: str, dtype: str, shape: tuple[int, ...], seed: int) -> Stream:
    return Stream(name, dtype, shape, random(dtype, shape, seed).blocks)


def two_rows(store: FolderArrays) -> Stream:
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


def stacked(store: FolderArrays) -> Stream:
    """Return two arrays as one tensor with one axis more."""
    raws = [store.open(store.put(random("bfloat16", (33, 5), seed))).raw for seed in (9, 10)]
    spans = [Span(raw, 0, raw.nbytes) for raw in raws if raw is not None]

    def blocks() -> Iterator[Any]:
        for span in spans:
            yield store.read(span.raw.digest)

    return Stream("stacked", "bfloat16", (2, 33, 5), blocks, lambda: spans)


def widened(store: FolderArrays) -> Stream:
    """Return rows 4 to 25 of one array and all of another, both a column of zeros after them, and rows of zeros."""
    raws = [store.open(store.put(random("int16", (rows, 6), rows))).raw for rows in (37, 19)]
    spans = [
        Span(raw, *at, 2, after)
        for raw, at, after in zip(raws, ((48, 312), (0, 228)), (14, 154), strict=True)
        if raw is not None
    ]

    def blocks() -> Iterator[Any]:
        for span, after in zip(spans, (1, 11), strict=True):
            rows = store.read(span.raw.digest)[span.begin // 12 : span.end // 12]
            yield np.pad(rows, ((0, after), (0, 1)))

    return Stream("widened", "int16", (22 + 1 + 19 + 11, 7), blocks, lambda: spans)


def several(store: FolderArrays) -> list[Stream]:
    return [
        made("z", "float32", (70, 3), 1),
        stored(store, "c", "bfloat16", (33, 5), 2)[0],
        stored(store, "b", "float64", (100,), 3)[0],
        made("a", "uint8", (9, 2, 2), 4),
        stored(store, "d", "uint8", (301,), 5)[0],
        two_rows(store),
        replace(made("q", "float32", (70, 2), 11), job="attention"),
        stacked(store),
        widened(store),
        made("n", "int64", (5,), 12),
        replace(made("k", "float32", (30, 2), 13), job="attention"),
    ]


def in_blocks(store: FolderArrays) -> list[Stream]:
    """Return tensors whose first bytes, at least, are whole blocks both of the array's files and of the shard."""
    return [stored(store, "a", "uint8", (3, 8192), 1)[0], stored(store, "b", "uint8", (2, 5000), 2)[0]]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_files_are_those_of_the_plain_way(store: FolderArrays, tmp_path: Path, workers: int) -> None:
    streams, told = several(store), list[int]()
    shards = [
        Shard(tmp_path / "1", tuple(streams)),
        Shard(tmp_path / "2", tuple(streams[1:3])),
        Shard(tmp_path / "3", ()),
    ]
    threads = torch.get_num_threads()
    digests = write_shards(shards, told.append, workers=workers)
    assert torch.get_num_threads() == threads
    for shard, digest in zip(shards, digests, strict=True):
        assert write_plain(tmp_path / "plain", shard.given) == digest == tree_digest(shard.path)
        assert len(shard.head) % 4096 == 0
        assert (tmp_path / "plain").read_bytes() == shard.path.read_bytes()
    assert sum(told) == sum(shard.nbytes for shard in shards)


def copy_instead(source: int, begin: int, target: int, at: int, nbytes: int) -> None:
    """Do what sharing blocks does, on any file system."""
    assert (begin % 4096, at % 4096, nbytes % 4096) == (0, 0, 0)
    os.pwrite(target, os.pread(source, nbytes, begin), at)


def refuse_to_share(*_: int) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


@pytest.mark.parametrize("clone", [copy_instead, refuse_to_share])
def test_shared_blocks_give_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clone: Callable[..., None]
) -> None:
    calls = list[int]()

    def count(source: int, begin: int, target: int, at: int, nbytes: int) -> None:
        calls.append(nbytes)
        clone(source, begin, target, at, nbytes)

    monkeypatch.setattr(module, "clone", count)
    monkeypatch.setattr(source, "CHUNK_ELEMENTS", 4096)
    monkeypatch.setattr(module, "COPIERS", 1)
    shard = Shard(tmp_path / "1", tuple(in_blocks(FolderArrays(tmp_path / "arrays"))))
    (digest,) = write_shards([shard], lambda amount: None)
    assert digest == write_plain(tmp_path / "plain", shard.given)
    assert (tmp_path / "plain").read_bytes() == shard.path.read_bytes()
    assert calls == ([4096] if clone is refuse_to_share else [4096, 8192, 8192, 8192, 4096])


def test_jobs_are_rendered_by_one_thread_in_order(tmp_path: Path) -> None:
    seen = list[tuple[str, int]]()

    def stream(name: str, job: str) -> Stream:
        def blocks() -> Iterator[Any]:
            seen.append((name, threading.get_ident()))
            yield from random("float32", (3, 2), 1).blocks()

        return Stream(name, "float32", (3, 2), blocks, job=job)

    streams = [stream("q", "one"), stream("a", ""), stream("x", "two"), stream("k", "one"), stream("b", "two")]
    write_shards([Shard(tmp_path / "1", tuple(streams))], lambda amount: None)
    assert [name for name, _ in seen] == ["q", "k", "a", "x", "b"]
    assert {thread for _, thread in seen} == {threading.get_ident()}
    seen.clear()
    write_shards([Shard(tmp_path / "1", tuple(streams))], lambda amount: None, workers=3)
    where = dict(seen)
    assert threading.get_ident() not in where.values()
    assert (where["q"], where["x"]) == (where["k"], where["b"])
    for first, second in (("q", "k"), ("x", "b")):
        assert [name for name, _ in seen if name in (first, second)] == [first, second]


def damage(folder: Path) -> None:
    chunk = folder / "c.3"
    data = chunk.read_bytes()
    chunk.write_bytes(data[:8] + bytes([data[8] ^ 1]) + data[9:])


def cut(folder: Path) -> None:
    os.truncate(folder / "c.3", 40)


def lose(folder: Path) -> None:
    (folder / "c.3").unlink()


@pytest.mark.parametrize("harm", [damage, cut, lose])
def test_damaged_array_stops_it(store: FolderArrays, tmp_path: Path, harm: Callable[[Path], None]) -> None:
    stream, digest = stored(store, "b", "float64", (2000,), 3)
    harm(store.path(digest))
    before = threading.active_count()
    with pytest.raises(DamagedError, match=rf"array {digest[:12]} is damaged"):
        write_shards([Shard(tmp_path / "1", (made("a", "float32", (500, 3), 1), stream))], lambda amount: None)
    assert threading.active_count() == before


@pytest.mark.parametrize("harm", [damage, cut, lose])
@pytest.mark.parametrize("make", [two_rows, stacked, widened])
def test_damaged_part_stops_it(
    store: FolderArrays, tmp_path: Path, make: Callable[[FolderArrays], Stream], harm: Callable[[Path], None]
) -> None:
    stream = make(store)
    raw = (stream.spans() or ())[-1].raw
    folder = store.path(raw.digest)
    chunk = raw.layout.chunk(folder, raw.count - 1)  # of rows, beyond those that are copied
    chunk.rename(folder / "c.3")
    harm(folder)
    if (folder / "c.3").exists():
        (folder / "c.3").rename(chunk)
    with pytest.raises(DamagedError, match=rf"array {raw.digest[:12]} is damaged"):
        write_shards([Shard(tmp_path / "1", (stream,))], lambda amount: None)


def test_array_that_is_cut_while_it_is_read_stops_it(
    store: FolderArrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, digest = stored(store, "b", "float64", (2000,), 3)

    def cut_first(file: Any, into: memoryview) -> None:
        os.truncate(store.path(digest) / "c.3", 40)
        fill(file, into)

    monkeypatch.setattr(module, "fill", cut_first)
    with pytest.raises(DamagedError, match=rf"array {digest[:12]} is damaged"):
        write_shards([Shard(tmp_path / "1", (stream,))], lambda amount: None)


@pytest.mark.parametrize("rows", [9, 11])
def test_tensor_of_another_size_is_told(store: FolderArrays, tmp_path: Path, rows: int) -> None:
    wrong = Stream("a", "float32", (10,), random("float32", (rows,), 1).blocks)
    with pytest.raises(StorageError, match=rf"tensor a came to {4 * rows} bytes, 40 were expected"):
        write_shards([Shard(tmp_path / "1", (wrong, stored(store, "b", "uint8", (999,), 1)[0]))], lambda amount: None)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("call", ["pwrite", "posix_fallocate", "fsync"])
def test_disk_that_refuses_stops_it(
    store: FolderArrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, workers: int
) -> None:
    streams = several(store)

    def refuse(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError, match="No space left on device"):
        write_shards([Shard(tmp_path / "1", tuple(streams))], lambda amount: None, workers=workers)


def test_first_failure_of_a_rendering_thread_stops_the_others(store: FolderArrays, tmp_path: Path) -> None:
    before, failed = threading.active_count(), threading.Event()

    def fails() -> Iterator[Any]:
        failed.set()
        raise StorageError("it failed", "repeat")
        yield

    def endless() -> Iterator[Any]:
        failed.wait()
        yield from slowly(10**5)

    streams = [Stream("endless", "uint8", (10**5,), endless), Stream("fails", "uint8", (9,), fails), *several(store)]
    with pytest.raises(StorageError, match="it failed"):
        write_shards([Shard(tmp_path / "1", tuple(streams))], lambda amount: None, workers=2)
    assert threading.active_count() == before


def slowly(count: int) -> Iterator[Any]:
    """Yield so many bytes, one in a millisecond."""
    for _ in range(count):
        time.sleep(0.001)
        yield from random("uint8", (1,), 1).blocks()


def test_signal_stops_rendering_threads(store: FolderArrays, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process among others may ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, handler))
    before = threading.active_count()

    def endless() -> Iterator[Any]:
        yield from slowly(10)
        os.kill(os.getpid(), signal.SIGINT)
        yield from slowly(10**5)

    streams = (Stream("endless", "uint8", (10**5 + 10,), endless), *several(store))
    with pytest.raises(KeyboardInterrupt):
        write_shards([Shard(tmp_path / "1", streams)], lambda amount: None, workers=2)
    assert threading.active_count() == before


def test_interrupt_stops_it(store: FolderArrays, tmp_path: Path) -> None:
    def blocks() -> Iterator[Any]:
        yield from random("float32", (5,), 1).blocks()
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        write_shards(
            [Shard(tmp_path / "1", (*several(store), Stream("y", "float32", (9,), blocks)))], lambda amount: None
        )
    assert threading.active_count() == before


@pytest.mark.check
@pytest.mark.trust(after=1)
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
    spans = [span for stream in streams for span in stream.spans() or ()]
    assert {(span.padding > 0, span.after > 0) for span in spans} == (
        {(False, False)} if router == "ridge" else {(True, False), (False, True)}  # a context layer makes all wider
    )
    write_plain(tmp_path / "plain", streams)
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "moe" / "model.safetensors").read_bytes()
