"""Safetensors files written by several threads: they compute tensors, copy bytes, and hash them, all at once.

The offset of every tensor in its file is known before the first byte is written. The calling thread, the only one to
run torch, computes tensors (trunk, routers) and writes them. A second thread copies tensors that are stored unchanged
(expert MLPs) from the array store's files, a few MiB at a time. A third hashes the copied bytes, and compares each
array with its digest. A fourth reads the files back behind the writers, in order, for their SHA-256. A fifth flushes
written bytes to disk, so that little is left to flush at the end. The bytes do not depend on the order of the threads.

The first failure in any thread stops all of them, and is raised in the calling thread.
"""

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue

from registry.errors import StorageError
from registry.io.safetensors_writer import Span, Stream, head, in_order
from registry.progress import Advance
from store.arrays import check_digest, new_hash, unreadable
from store.raw_chunks import RawArray

PIECE = 1 << 21
"""Bytes that are read and hashed at a time."""

PIECES = 12
"""Pieces in memory at once."""

FLUSH_BYTES = 1 << 28
"""Unflushed bytes from which files are flushed."""


@dataclass(frozen=True)
class Shard:
    """A safetensors file to write: 8 bytes for the length of the header, the header (JSON), the tensors back to back.

    Attributes:
        path: the file.
        given: its tensors, in the order of their computation.
    """

    path: Path
    given: tuple[Stream, ...]

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        """Its tensors, in the order of the file."""
        return in_order(self.given)

    @cached_property
    def head(self) -> bytes:
        """The bytes before the tensors."""
        return head(self.streams)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(stream.nbytes for stream in self.streams)


def write_shards(shards: Sequence[Shard], advance: Advance, *, flush: bool = True) -> list[str]:
    """Write files, and return the SHA-256 of each.

    Args:
        shards: the files; tensors are computed in their order, and within each in that of `Shard.given`.
        advance: receives bytes of tensors; called by one thread at a time.
        flush: flush the files to disk before this returns.

    Raises:
        DamagedError: an array does not have its digest.
        StorageError: a tensor has another size than its stream.
        OSError: the disk is full or refuses.
        RegError: any error of `Stream.blocks`.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(shard.path.open("wb+", buffering=0)).fileno() for shard in shards]
        return _Writing(shards, files, advance, flush).run()


class _StoppedError(Exception):
    """Another thread failed."""


class _Writing:
    """One run of the threads."""

    def __init__(self, shards: Sequence[Shard], files: Sequence[int], advance: Advance, flush: bool) -> None:
        self._shards, self._files, self._advance = shards, files, advance
        self._begins = [
            list(accumulate((stream.nbytes for stream in shard.streams), initial=len(shard.head))) for shard in shards
        ]
        self._turn = threading.Condition()  # guards the attributes up to the error
        self._written = [[0] * len(shard.streams) for shard in shards]
        self._dirty = [0] * len(shards)
        self._writers = 2
        self._error: BaseException | None = None
        self._buffers: SimpleQueue[memoryview | None] = SimpleQueue()
        self._read: SimpleQueue[tuple[Span, memoryview | None] | None] = SimpleQueue()
        self._digests: list[str] = []
        self._threads = [self._copy, self._check, self._hash, *([self._flush] if flush else [])]
        # Tensors by number of the file and index in its streams.
        self._copied: list[tuple[int, int, Sequence[Span]]] = []
        self._computed: list[tuple[int, int]] = []

    def run(self) -> list[str]:
        """Write everything, and return the SHA-256 of each file."""
        for number, shard in enumerate(self._shards):
            index_of = {stream.name: index for index, stream in enumerate(shard.streams)}
            spans = [stream.spans() for stream in shard.streams]
            self._copied += [(number, index, stored) for index, stored in enumerate(spans) if stored is not None]
            self._computed += [(number, index_of[s.name]) for s in shard.given if spans[index_of[s.name]] is None]
        threads = [threading.Thread(target=self._guarded, args=(run,), daemon=True) for run in self._threads]
        for thread in threads:
            thread.start()
        try:
            self._guarded(self._compute)
            for thread in threads:
                thread.join()
        except BaseException as error:  # an interrupt
            self._fail(error)
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error
        return self._digests

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except _StoppedError:
            pass
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._turn:
            if self._error is None or not isinstance(error, Exception):
                self._error = error
            self._turn.notify_all()
        self._buffers.put(None)
        self._read.put(None)

    def _compute(self) -> None:
        """Write the headers and the tensors that are computed."""
        for number, shard in enumerate(self._shards):
            _allocate(self._files[number], len(shard.head) + shard.nbytes)
            self._put(number, memoryview(shard.head), 0)
        for number, index in self._computed:
            stream, nbytes = self._shards[number].streams[index], 0
            for block in stream.blocks():
                data = block.data.cast("B")
                if nbytes + len(data) <= stream.nbytes:
                    self._write(number, index, data, nbytes)
                nbytes += len(data)
            if nbytes != stream.nbytes:
                raise StorageError(
                    f"tensor {stream.name} came to {nbytes:,} bytes, {stream.nbytes:,} were expected", "run: reg verify"
                )
        self._close()

    def _copy(self) -> None:
        """Write the tensors that are stored unchanged, and queue their bytes for the check."""
        for _ in range(PIECES if self._copied else 0):
            self._buffers.put(memoryview(bytearray(PIECE)))
        for number, index, spans in self._copied:
            nbytes = 0
            for span in spans:
                offset = 0  # in the array, which is read in full for its digest
                for piece in self._pieces(span.raw):
                    part = piece[max(span.begin - offset, 0) : max(span.end - offset, 0)]
                    if len(part):
                        self._write(number, index, part, nbytes)
                        nbytes += len(part)
                    offset += len(piece)
                    self._read.put((span, piece))
                self._read.put((span, None))
        self._read.put(None)
        self._close()

    def _pieces(self, raw: RawArray) -> Iterator[memoryview]:
        for number in range(raw.count):
            pieces = raw.pieces(number, self._buffer)
            while True:
                try:
                    piece = next(pieces, None)
                except OSError as error:
                    raise unreadable(raw.digest, error) from error
                if piece is None:
                    break
                yield piece

    def _buffer(self) -> memoryview:
        if (buffer := self._buffers.get()) is None:
            raise _StoppedError
        return buffer

    def _check(self) -> None:
        """Hash the copied bytes, and compare each array with its digest."""
        state = None
        while (read := self._read.get()) is not None:
            span, piece = read
            state = state or new_hash(span.raw.dtype, span.raw.shape)
            if piece is None:
                check_digest(span.raw.digest, state)
                state = None
            else:
                state.update(piece)
                self._buffers.put(memoryview(piece.obj))

    def _hash(self) -> None:
        """Read each file back behind the writers, in order, and hash it."""
        buffer = memoryview(bytearray(PIECE))
        for number, shard in enumerate(self._shards):
            state = hashlib.sha256(shard.head)
            for index, stream in enumerate(shard.streams):
                hashed = 0
                while hashed < stream.nbytes:
                    ready = self._wait(number, index, hashed)
                    while hashed < ready:
                        at, size = self._begins[number][index] + hashed, min(PIECE, ready - hashed)
                        read = os.preadv(self._files[number], [buffer[:size]], at)
                        if not read:
                            raise StorageError(
                                f"{shard.path} is shorter than the bytes written to it",
                                "another process writes there: choose another --out, or repeat when it has ended",
                            )
                        state.update(buffer[:read])
                        hashed += read
            self._digests.append(state.hexdigest())

    def _wait(self, number: int, index: int, hashed: int) -> int:
        """Wait until more than `hashed` bytes of a tensor are written, and return how many are."""
        with self._turn:
            while self._error is None and self._written[number][index] <= hashed:
                self._turn.wait()
            if self._error is not None:
                raise _StoppedError
            return self._written[number][index]

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

    def _write(self, number: int, index: int, data: memoryview, nbytes: int) -> None:
        """Write bytes of a tensor after the first `nbytes`, and notify the other threads."""
        self._put(number, data, self._begins[number][index] + nbytes)
        with self._turn:
            if self._error is not None:
                raise _StoppedError
            self._written[number][index] += len(data)
            self._dirty[number] += len(data)
            self._advance(len(data))
            self._turn.notify_all()

    def _put(self, number: int, data: memoryview, at: int) -> None:
        while data:
            written = os.pwrite(self._files[number], data, at)
            data, at = data[written:], at + written

    def _close(self) -> None:
        with self._turn:
            self._writers -= 1
            self._turn.notify_all()


def _allocate(file: int, nbytes: int) -> None:
    """Allocate the blocks of a file, if the system can: writing is several times as fast then.

    Raises:
        OSError: the disk is full.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file, 0, nbytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # the errors of file systems without it
            raise
