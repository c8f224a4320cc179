"""Proves: files written by several hands are those of the plain way, and whatever fails in one of them ends all."""

import errno
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from registry import Recipe, Registry
from registry.io import shard_writer as module
from registry.io.dtypes import SAFETENSORS
from registry.io.safetensors_file import Span, Stream
from registry.io.shard_writer import Shard, write_shards
from registry.io.tree_digest import tree_digest
from registry.methods.moe.model_writer import streams_of
from registry.methods.moe.tensor_source import StoredSource
from store.arrays import CARRIERS, ArraySource, FolderArrays, fill, source
from store.errors import DamagedError, StorageError
from tests.digests import tree_of
from tests.models import make_model, save_checkpoint, sentences, write_jsonl


def write_plain(path: Path, streams: Sequence[Stream]) -> str:
    """Write one file the plain way, one thread, block by block, and return its tree digest."""
    streams = sorted(streams, key=lambda stream: (-CARRIERS[stream.dtype][1], stream.name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for stream in streams:
        begin, end = end, end + stream.nbytes
        shape = {"dtype": SAFETENSORS[stream.dtype], "shape": list(stream.shape)}
        header[stream.name] = shape | {"data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for stream in streams:
            for block in stream.blocks():
                file.write(block.data.cast("B"))
    return tree_of(path.read_bytes())


def write(path: Path, *streams: Stream, workers: int = 1) -> str:
    """Write one file, and check that no thread is left, whatever fails."""
    before = threading.active_count()
    try:
        (digest,) = write_shards([Shard(path, streams)], lambda amount: None, workers=workers)
    finally:
        assert threading.active_count() == before
    return digest


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
        return [Span(raw, 0, raw.layout.nbytes)]

    return Stream(name, dtype, shape, lambda: store.open(digest).blocks(), spans), digest


def made(name: str, dtype: str, shape: tuple[int, ...], seed: int) -> Stream:
    return Stream(name, dtype, shape, random(dtype, shape, seed).blocks)


PARTS: dict[str, tuple[tuple[int, ...], list[tuple[int, int]], list[tuple[int, ...]]]] = {
    "rows": ((40, 7), [(60, 7), (60, 7)], [(280, 700), (0, 140)]),  # 20 to 49 of one array above 0 to 9 of another
    "stacked": ((2, 33, 5), [(33, 5), (33, 5)], [(0, 330), (0, 330)]),  # two arrays as one with one axis more
    "widened": ((53, 7), [(37, 6), (19, 6)], [(48, 312, 2, 14), (0, 228, 2, 154)]),  # a column of zeros, and rows
}
"""Tensors of parts of arrays: their shape, the arrays', and of each array which bytes are taken, and how many zeros
follow each row and all of them."""


def parts(store: FolderArrays, name: str) -> Stream:
    shape, arrays, taken = PARTS[name]
    raws = [store.open(store.put(random("bfloat16", size, seed))).raw for seed, size in enumerate(arrays)]
    spans = [Span(raw, *at) for raw, at in zip(raws, taken, strict=True) if raw is not None]

    def blocks() -> Iterator[Any]:
        for span, (_, columns) in zip(spans, arrays, strict=True):
            rows = store.read(span.raw.digest)[span.begin // (2 * columns) : span.end // (2 * columns)]
            yield np.pad(rows, ((0, span.after // (2 * columns + span.padding)), (0, span.padding // 2)))

    return Stream(name, "bfloat16", shape, blocks, lambda: spans)


def several(store: FolderArrays) -> list[Stream]:
    return [
        made("z", "float32", (70, 3), 1),
        stored(store, "c", "bfloat16", (33, 5), 2)[0],
        stored(store, "b", "float64", (100,), 3)[0],
        made("a", "uint8", (9, 2, 2), 4),
        stored(store, "d", "uint8", (301,), 5)[0],
        parts(store, "rows"),
        replace(made("q", "float32", (70, 2), 11), job="attention"),
        parts(store, "stacked"),
        parts(store, "widened"),
        made("n", "int64", (5,), 12),
        replace(made("k", "float32", (30, 2), 13), job="attention"),
    ]


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
    store = FolderArrays(tmp_path / "arrays")  # whose files begin with whole blocks, as the shard's tensors do
    streams = [stored(store, "a", "uint8", (3, 8192), 1)[0], stored(store, "b", "uint8", (2, 5000), 2)[0]]
    assert write(tmp_path / "1", *streams) == write_plain(tmp_path / "plain", streams)
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "1").read_bytes()
    assert calls == ([4096] if clone is refuse_to_share else [4096, 8192, 8192, 8192, 4096])


def test_jobs_are_rendered_by_one_thread_in_order(tmp_path: Path) -> None:
    seen = list[tuple[str, int]]()

    def stream(name: str, job: str) -> Stream:
        def blocks() -> Iterator[Any]:
            seen.append((name, threading.get_ident()))
            yield from random("float32", (3, 2), 1).blocks()

        return Stream(name, "float32", (3, 2), blocks, job=job)

    streams = [stream("q", "one"), stream("a", ""), stream("x", "two"), stream("k", "one"), stream("b", "two")]
    write(tmp_path / "1", *streams)
    assert [name for name, _ in seen] == ["q", "k", "a", "x", "b"]
    assert {thread for _, thread in seen} == {threading.get_ident()}
    seen.clear()
    write(tmp_path / "1", *streams, workers=3)
    where = dict(seen)
    assert threading.get_ident() not in where.values()
    assert (where["q"], where["x"]) == (where["k"], where["b"])
    for first, second in (("q", "k"), ("x", "b")):
        assert [name for name, _ in seen if name in (first, second)] == [first, second]


def damage(chunk: Path) -> None:
    data = chunk.read_bytes()
    chunk.write_bytes(data[:8] + bytes([data[8] ^ 1]) + data[9:])


def cut(chunk: Path) -> None:
    os.truncate(chunk, 40)


@pytest.mark.parametrize("harm", [damage, cut, Path.unlink])
@pytest.mark.parametrize("name", ["whole", *PARTS])
def test_damaged_array_stops_it(store: FolderArrays, tmp_path: Path, name: str, harm: Callable[[Path], None]) -> None:
    stream = parts(store, name) if name in PARTS else stored(store, name, "float64", (2000,), 3)[0]
    raw = (stream.spans() or ())[-1].raw
    harm(store.path(raw.digest) / raw.layout.chunk_name(raw.layout.count - 1))  # of rows, beyond those that are copied
    with pytest.raises(DamagedError, match=rf"array {raw.digest[:12]} is damaged"):
        write(tmp_path / "1", made("z", "float32", (500, 3), 1), stream)


def test_array_that_is_cut_while_it_is_read_stops_it(
    store: FolderArrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, digest = stored(store, "b", "float64", (2000,), 3)

    def cut_first(file: Any, into: memoryview) -> None:
        os.truncate(store.path(digest) / "c.3", 40)
        fill(file, into)

    monkeypatch.setattr(module, "fill", cut_first)
    with pytest.raises(DamagedError, match=rf"array {digest[:12]} is damaged"):
        write(tmp_path / "1", stream)


def interrupted() -> Iterator[Any]:
    yield from random("float32", (5,), 1).blocks()
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("blocks", "kind", "message"),
    [
        (random("float32", (9,), 1).blocks, StorageError, "tensor y came to 36 bytes, 40 were expected"),
        (random("float32", (11,), 1).blocks, StorageError, "tensor y came to 44 bytes, 40 were expected"),
        (interrupted, KeyboardInterrupt, "^$"),
    ],
    ids=["too small", "too large", "interrupted"],
)
def test_tensor_that_fails_stops_it(
    store: FolderArrays, tmp_path: Path, blocks: Callable[[], Any], kind: type[BaseException], message: str
) -> None:
    with pytest.raises(kind, match=message):
        write(tmp_path / "1", *several(store), Stream("y", "float32", (10,), blocks))


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
        write(tmp_path / "1", *streams, workers=workers)


def test_first_failure_of_a_rendering_thread_stops_the_others(store: FolderArrays, tmp_path: Path) -> None:
    failed = threading.Event()

    def fails() -> Iterator[Any]:
        failed.set()
        raise StorageError("it failed", "repeat")
        yield

    def endless() -> Iterator[Any]:
        failed.wait()
        yield from slowly(10**5)

    streams = [Stream("endless", "uint8", (10**5,), endless), Stream("fails", "uint8", (9,), fails), *several(store)]
    with pytest.raises(StorageError, match="it failed"):
        write(tmp_path / "1", *streams, workers=2)


def slowly(count: int) -> Iterator[Any]:
    """Yield so many bytes, one in a millisecond."""
    for _ in range(count):
        time.sleep(0.001)
        yield from random("uint8", (1,), 1).blocks()


def test_signal_stops_rendering_threads(store: FolderArrays, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process among others may ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, handler))

    def endless() -> Iterator[Any]:
        yield from slowly(10)
        os.kill(os.getpid(), signal.SIGINT)
        yield from slowly(10**5)

    streams = (Stream("endless", "uint8", (10**5 + 10,), endless), *several(store))
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "1", *streams, workers=2)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(
    ("family", "router"), [("phi3", "context"), ("llama", "ridge"), ("granite", "context"), ("phi3", "ridge")]
)
def test_composition_is_that_of_the_plain_way(
    registry: Registry, tmp_path: Path, tokenizer: Any, family: str, router: str
) -> None:
    for seed, name in ((1, "code"), (2, "math")):
        folder = save_checkpoint(make_model(family, seed), tmp_path / name, tokenizer)
        registry.add_expert(name, folder, data=[write_jsonl(tmp_path / f"{name}.jsonl", sentences(name, 20))])
    recipe = Recipe(router=router, lam=1.0) if router == "ridge" else Recipe(router=router)
    plan = registry.plan(["code", "math"], recipe)
    registry.compose(["code", "math"], tmp_path / "moe", recipe)
    streams = streams_of(StoredSource(plan))
    spans = [span for stream in streams for span in stream.spans() or ()]
    assert {(span.padding > 0, span.after > 0) for span in spans} == (
        {(False, False)} if router == "ridge" else {(True, False), (False, True)}  # a context layer makes all wider
    )
    write_plain(tmp_path / "plain", streams)
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "moe" / "model.safetensors").read_bytes()
