"""Safetensors files written by several threads: they render tensors, copy bytes, and flush them, all at once.

The offset of every tensor in its file is known before the first byte is written. Rendering threads, the only ones to
run torch, compute tensors (trunk, routers), hash and write them. Copying threads take tensors that are stored unchanged
(expert MLPs) from the array store's files: a piece of a file is read into a buffer that fits the processor's cache,
hashed and written from there, so that a byte is hashed once, and read from memory once. On file systems that share
blocks between files (btrfs, XFS), blocks are shared instead, and only read and hashed. One more thread flushes written
bytes to disk, so that little is left to flush at the end. The bytes do not depend on the order of the threads.

The identity of a file is its tree digest (`tree_digest.py`). That of a tensor which is one whole stored array is the
array's own, against which it was checked.

The first failure in any thread stops all of them, and is raised in the calling thread.
"""

import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fcntl import ioctl
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

from registry.io.safetensors_file import Span, Stream, allocate, check_size, head, in_order, write_at
from registry.io.tree_digest import combine
from registry.progress import Advance
from store.arrays import ArrayFiles, fill, new_hash, unreadable
from store.arrays.chunks import ChunkFile
from store.errors import DamagedError

ALIGN = 4096  # tensors begin at a multiple of so many bytes of their file: the block size of common file systems
PIECE = 1 << 20  # bytes that are copied and hashed at a time
COPIERS = 4  # copying threads, at most
FLUSH_BYTES = 1 << 28  # unflushed bytes from which files are flushed

_T = TypeVar("_T")

_FICLONERANGE = 0x4020940D  # linux/fs.h: descriptor, offset and length of the source, offset in the target


@dataclass(frozen=True)
class Shard:
    """A safetensors file to write; its tensors are given in the order of their computation."""

    path: Path
    given: tuple[Stream, ...]

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        """Its tensors, in the order of the file."""
        return in_order(self.given)

    @cached_property
    def head(self) -> bytes:
        """The bytes before the tensors."""
        return head(self.streams, align=ALIGN)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(stream.nbytes for stream in self.streams)


def write_shards(shards: Sequence[Shard], advance: Advance, *, flush: bool = True, workers: int = 1) -> list[str]:
    """Write files, and return the tree digest of each.

    Tensors are computed in the order of the files, and within each in that of `Shard.given`, except that those of one
    `Stream.job` follow its first.

    Args:
        advance: receives bytes of tensors; called by one thread at a time.
        flush: flush the files to disk before this returns.
        workers: rendering threads. With 1 the calling thread renders; with more, each runs torch on one thread.

    Raises:
        DamagedError, StorageError: an array does not have its digest; a tensor has another size than its stream.
        OSError, RegError: the disk is full or refuses; any error of `Stream.blocks`.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(shard.path.open("wb", buffering=0)).fileno() for shard in shards]
        return _Writing(shards, files, advance, flush=flush, workers=workers).run()


class _StoppedError(Exception):
    """Another thread failed."""


@dataclass(frozen=True)
class _Tensor:
    """A tensor at its place: number of the file, index in its streams, offset in the file."""

    stream: Stream
    file: int
    index: int
    begin: int


class _Writing:
    """One run of the threads."""

    def __init__(
        self, shards: Sequence[Shard], files: Sequence[int], advance: Advance, *, flush: bool, workers: int
    ) -> None:
        self._shards, self._files, self._advance = shards, files, advance
        self._flushes, self._workers = flush, workers
        self._turn = threading.Condition(threading.Lock())  # guards the attributes up to the error, and tells changes
        self._dirty = [0] * len(shards)
        self._writers = self._running = 0
        self._error: BaseException | None = None
        self._digests = [[""] * len(shard.streams) for shard in shards]
        self._copies: SimpleQueue[tuple[_Tensor, Sequence[Span]]] = SimpleQueue()
        self._jobs: SimpleQueue[list[_Tensor]] = SimpleQueue()
        self._shares_blocks = False

    def run(self) -> list[str]:
        """Write everything, and return the tree digest of each file."""
        self._queue()
        for file, shard in zip(self._files, self._shards, strict=True):
            if not self._shares_blocks:  # which takes no space
                allocate(file, len(shard.head) + shard.nbytes)
            write_at(file, memoryview(shard.head), 0)
        writers = [self._copy] * min(COPIERS, os.cpu_count() or 1, self._copies.qsize())
        if self._workers > 1:
            writers += [self._render_alone] * min(self._workers, self._jobs.qsize())
        self._writers = len(writers) + (self._workers <= 1)
        runs = [*((run, 1) for run in writers), *([(self._flush, 0)] if self._flushes else [])]
        with _torch_threads() if self._workers > 1 else ExitStack():
            threads = [threading.Thread(target=self._run_thread, args=run, daemon=True) for run in runs]
            self._running = len(threads)
            for thread in threads:
                thread.start()
            try:
                if self._workers <= 1:
                    self._run_thread(self._render, writers=1, running=0)
                self._wait()
            except BaseException as error:  # an interrupt
                self._fail(error)
                self._wait()
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error
        return [combine(shard.head, digests) for shard, digests in zip(self._shards, self._digests, strict=True)]

    def _queue(self) -> None:
        """Queue the tensors to copy, and the jobs of those to render."""
        jobs: dict[tuple[str, int], list[_Tensor]] = {}
        for number, shard in enumerate(self._shards):
            ends = accumulate((stream.nbytes for stream in shard.streams), initial=len(shard.head))
            begun = enumerate(zip(shard.streams, ends, strict=False))
            tensors = {stream.name: _Tensor(stream, number, index, begin) for index, (stream, begin) in begun}
            for stream in shard.streams:
                if (spans := stream.spans()) is not None:
                    if self._copies.empty():
                        self._shares_blocks = _can_share(spans[0].raw, self._files[number])
                    self._copies.put((tensors.pop(stream.name), spans))
            for tensor in (tensors[stream.name] for stream in shard.given if stream.name in tensors):
                key = (tensor.stream.job, 0) if tensor.stream.job else ("", len(jobs))
                jobs.setdefault(key, []).append(tensor)
        for job in jobs.values():
            self._jobs.put(job)

    def _run_thread(self, run: Callable[[], None], writers: int, running: int = 1) -> None:
        """Run a part of the work, keep its failure, and count it as ended."""
        try:
            run()
        except _StoppedError:
            pass
        except BaseException as error:
            self._fail(error)
        with self._turn:
            self._writers -= writers
            self._running -= running
            self._turn.notify_all()

    def _wait(self) -> None:
        """Wait until the threads have ended: an interrupt may stop this, where `Thread.join` would lose the thread."""
        with self._turn:
            while self._running:
                self._turn.wait()

    def _fail(self, error: BaseException) -> None:
        with self._turn:
            if self._error is None or not isinstance(error, Exception):
                self._error = error
            self._turn.notify_all()

    def _render_alone(self) -> None:
        """Render on one thread of torch: the setting belongs to the calling thread."""
        import torch

        torch.set_num_threads(1)
        self._render()

    def _render(self) -> None:
        """Compute tensors, hash and write them."""
        for job in _emptied(self._jobs):
            for tensor in job:
                stream, nbytes = tensor.stream, 0
                state = new_hash(stream.dtype, stream.shape)
                for block in stream.blocks():
                    data = block.data.cast("B")
                    if nbytes + len(data) <= stream.nbytes:
                        state.update(data)
                        write_at(self._files[tensor.file], data, tensor.begin + nbytes)
                        self._wrote(tensor, len(data))
                    nbytes += len(data)
                check_size(stream, nbytes)
                self._digests[tensor.file][tensor.index] = state.hexdigest()

    def _copy(self) -> None:
        """Write tensors that are stored unchanged."""
        buffer = memoryview(bytearray(PIECE))
        for tensor, spans in _emptied(self._copies):
            stream = tensor.stream
            # A tensor that is one whole array has its digest. Of any other the bytes are hashed again, as a tensor's.
            begin, end, layout = spans[0].begin, spans[0].end, spans[0].raw.layout
            whole = (begin, end, layout.dtype, layout.shape) == (0, layout.nbytes, stream.dtype, stream.shape)
            own = None if whole and len(spans) == 1 else new_hash(stream.dtype, stream.shape)
            nbytes = 0
            for span in spans:
                state = new_hash(span.raw.layout.dtype, span.raw.layout.shape)
                if nbytes + span.nbytes <= stream.nbytes:
                    for piece, part in self._copied(span, tensor, nbytes, buffer):
                        state.update(piece)
                        if own is not None:
                            own.update(part)
                        self._wrote(tensor, len(part))
                    span.raw.check(state)
                    for part in self._zeros(tensor, nbytes + span.nbytes - span.after, span.after):
                        if own is not None:
                            own.update(part)
                        self._wrote(tensor, len(part))
                nbytes += span.nbytes
            check_size(stream, nbytes)
            self._digests[tensor.file][tensor.index] = spans[0].raw.digest if own is None else own.hexdigest()

    def _copied(
        self, span: Span, tensor: _Tensor, nbytes: int, buffer: memoryview
    ) -> Iterator[tuple[memoryview, memoryview]]:
        """Write one span of a tensor, which has `nbytes` before it; yield all pieces of its array, and what is written.

        The array is read in full for its digest.
        """
        if span.padding:
            yield from self._padded(span, tensor, nbytes)
            return
        target, raw, offset = self._files[tensor.file], span.raw, 0  # the offset in the array
        to = tensor.begin + nbytes - span.begin  # the difference between offsets in the target and in the array
        for number in range(raw.layout.count):
            end = offset + raw.layout.rows(number) * raw.layout.row_bytes
            begin, stop = max(span.begin, offset), min(span.end, end)  # of what is copied
            with raw.opened(number) as file:
                shared = begin + self._share(file, begin - offset, target, begin + to, stop - begin)
                while offset < end:
                    piece = _filled(raw, file, buffer[: end - offset])
                    write_at(target, piece[max(shared - offset, 0) : max(stop - offset, 0)], max(shared, offset) + to)
                    yield piece, piece[max(begin - offset, 0) : max(stop - offset, 0)]
                    offset += len(piece)

    def _padded(self, span: Span, tensor: _Tensor, nbytes: int) -> Iterator[tuple[memoryview, memoryview]]:
        """Write one span with zeros after each row, and yield as `_copied`: each byte is touched in the cache only."""
        import numpy as np

        raw, layout, target = span.raw, span.raw.layout, self._files[tensor.file]
        width = layout.row_bytes
        wide = np.zeros((max(1, PIECE // (width + span.padding)), width + span.padding), np.uint8)
        narrow = np.empty((len(wide), width), np.uint8)
        buffer, padded = narrow.reshape(-1).data, wide.reshape(-1).data
        at = tensor.begin + nbytes
        for number in range(layout.count):
            row = number * layout.height
            end = row + layout.rows(number)
            with raw.opened(number) as file:
                while row < end:
                    piece = _filled(raw, file, buffer[: (end - row) * width])
                    height = len(piece) // width
                    begin = min(max(span.begin // width - row, 0), height)
                    stop = max(min(span.end // width - row, height), begin)
                    wide[: stop - begin, :width] = narrow[begin:stop]
                    part = padded[: (stop - begin) * (width + span.padding)]
                    write_at(target, part, at)
                    yield piece, part
                    row, at = row + height, at + len(part)

    def _zeros(self, tensor: _Tensor, nbytes: int, count: int) -> Iterator[memoryview]:
        """Write zeros to a tensor with `nbytes` before them; yield them by pieces."""
        zeros = memoryview(bytes(min(count, PIECE)))
        for start in range(0, count, PIECE):
            part = zeros[: count - start]
            write_at(self._files[tensor.file], part, tensor.begin + nbytes + start)
            yield part

    def _share(self, source: ChunkFile, begin: int, target: int, at: int, nbytes: int) -> int:
        """Share blocks of a file with the target, and return how many bytes from `begin` on are there now."""
        nbytes -= nbytes % ALIGN
        if not self._shares_blocks or nbytes <= 0 or begin % ALIGN or at % ALIGN:
            return 0
        try:
            clone(source.fileno(), begin, target, at, nbytes)
        except OSError:  # these blocks cannot be shared; where something else fails, writing raises it
            return 0
        return nbytes

    def _wrote(self, tensor: _Tensor, nbytes: int) -> None:
        """Count bytes written, and wake the flushing thread once there are enough for it."""
        with self._turn:
            if self._error is not None:
                raise _StoppedError
            self._dirty[tensor.file] += nbytes
            self._advance(nbytes)
            if sum(self._dirty) >= FLUSH_BYTES:
                self._turn.notify_all()

    def _flush(self) -> None:
        """Flush written bytes to disk, repeatedly, until the writers have ended."""
        writing = True
        while writing:
            with self._turn:
                while self._error is None and self._writers and sum(self._dirty) < FLUSH_BYTES:
                    self._turn.wait()
                if self._error is not None:
                    raise _StoppedError
                writing = bool(self._writers)
                numbers = [number for number, dirty in enumerate(self._dirty) if dirty]
                self._dirty = [0] * len(self._files)
            for number in numbers:
                os.fsync(self._files[number])


def clone(source: int, begin: int, target: int, at: int, nbytes: int) -> None:
    """Share blocks of an open file with another (OSError: the system or the file system cannot)."""
    ioctl(target, _FICLONERANGE, struct.pack("qQQQ", source, begin, nbytes, at))


def _can_share(raw: ArrayFiles, target: int) -> bool:
    """Tell whether files of an array and an empty file can share blocks; if so, the first one now does."""
    if sys.platform != "linux":
        return False
    try:
        with raw.opened(0) as file:
            clone(file.fileno(), 0, target, 0, ALIGN)
    except (OSError, DamagedError):
        return False
    return True


def _filled(raw: ArrayFiles, file: ChunkFile, buffer: memoryview) -> memoryview:
    """Fill a buffer from a file of an array, and return it."""
    try:
        fill(file, buffer)
    except OSError as error:
        raise unreadable(raw.digest, error) from error
    return buffer


def _emptied(queue: "SimpleQueue[_T]") -> Iterator[_T]:
    """Yield the items of a queue that nothing is added to."""
    with suppress(Empty):
        while True:
            yield queue.get_nowait()


@contextmanager
def _torch_threads() -> Iterator[None]:
    """Restore the number of torch's threads afterwards: a thread that sets its own also sets that of later threads."""
    import torch

    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
