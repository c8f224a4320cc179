"""Writing safetensors files by several hands at once: one makes tensors, one copies bytes, two hash them.

Every tensor's place in its file is known before the first byte is written. So what has to be computed (trunk, routers)
is written by the calling thread, which alone runs torch, while another thread copies what is stored as it will stand
(expert MLPs) from the array store's files, a few MiB at a time. What it read is hashed against the array's digest by a
third. A fourth reads each file back in its wake, in order, for the file's SHA-256. A fifth has the system flush what is
there already, so that little is left to flush in the end. Any order in which they run gives the same bytes.

The first failure of any of them ends all, and is raised by the caller's thread.
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
"""New bytes from which on the system is asked to flush."""


@dataclass(frozen=True)
class Shard:
    """A safetensors file to be: 8 bytes for the length of the header, the header (JSON), the tensors back to back.

    Attributes:
        path: the file.
        given: its tensors, in any order.
    """

    path: Path
    given: tuple[Stream, ...]

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        """Its tensors as they stand in it."""
        return in_order(self.given)

    @cached_property
    def head(self) -> bytes:
        """What comes before the tensors."""
        return head(self.streams)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(stream.nbytes for stream in self.streams)


def write_shards(shards: Sequence[Shard], advance: Advance, *, flush: bool = True) -> list[str]:
    """Write files, and return the SHA-256 of each.

    Args:
        shards: what to write; a tensor that is computed is made in their order, and in each in that of `Shard.given`.
        advance: told of bytes of tensors; called by one thread at a time.
        flush: have the files on disk when this returns.

    Raises:
        DamagedError: an array is not what was stored.
        StorageError: a tensor came to another size.
        OSError: the disk is full or refuses.
        RegError: what `Stream.blocks` raises.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(shard.path.open("wb+", buffering=0)).fileno() for shard in shards]
        return _Writing(shards, files, advance, flush).run()


class _StoppedError(Exception):
    """Another thread failed."""


class _Writing:
    def __init__(self, shards: Sequence[Shard], files: Sequence[int], advance: Advance, flush: bool) -> None:
        self._shards, self._files, self._advance = shards, files, advance
        self._begins = [
            list(accumulate((stream.nbytes for stream in shard.streams), initial=len(shard.head))) for shard in shards
        ]
        self._turn = threading.Condition()  # guards what follows up to the error
        self._written = [[0] * len(shard.streams) for shard in shards]
        self._dirty = [0] * len(shards)
        self._writers = 2
        self._error: BaseException | None = None
        self._buffers: SimpleQueue[memoryview | None] = SimpleQueue()
        self._read: SimpleQueue[tuple[Span, memoryview | None] | None] = SimpleQueue()
        self._digests: list[str] = []
        self._hands = [self._copy, self._check, self._hash, *([self._flush] if flush else [])]
        self._copied: list[tuple[int, int, Sequence[Span]]] = []
        self._made: list[tuple[int, int]] = []

    def run(self) -> list[str]:
        """Write everything, and return the SHA-256 of each file."""
        for number, shard in enumerate(self._shards):
            places = {stream.name: place for place, stream in enumerate(shard.streams)}
            spans = [stream.spans() for stream in shard.streams]
            self._copied += [(number, place, found) for place, found in enumerate(spans) if found is not None]
            self._made += [(number, places[s.name]) for s in shard.given if spans[places[s.name]] is None]
        threads = [threading.Thread(target=self._guarded, args=(hand,), daemon=True) for hand in self._hands]
        for thread in threads:
            thread.start()
        try:
            self._guarded(self._make)
            for thread in threads:
                thread.join()
        except BaseException as error:  # an interrupt
            self._fail(error)
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error
        return self._digests

    def _guarded(self, hand: Callable[[], None]) -> None:
        try:
            hand()
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

    def _make(self) -> None:
        """Write what is computed."""
        for number, shard in enumerate(self._shards):
            _set_aside(self._files[number], len(shard.head) + shard.nbytes)
            self._put(number, memoryview(shard.head), 0)
        for number, place in self._made:
            stream, done = self._shards[number].streams[place], 0
            for block in stream.blocks():
                data = block.data.cast("B")
                if done + len(data) <= stream.nbytes:
                    self._write(number, place, data, done)
                done += len(data)
            if done != stream.nbytes:
                raise StorageError(
                    f"tensor {stream.name} came to {done:,} bytes, {stream.nbytes:,} were expected", "run: reg verify"
                )
        self._close()

    def _copy(self) -> None:
        """Write what is stored as it will stand, and hand it on to be checked."""
        for _ in range(PIECES if self._copied else 0):
            self._buffers.put(memoryview(bytearray(PIECE)))
        for number, place, spans in self._copied:
            done = 0
            for span in spans:
                at = 0
                for piece in self._pieces(span.raw):
                    wanted = piece[max(span.begin - at, 0) : max(span.end - at, 0)]
                    if len(wanted):
                        self._write(number, place, wanted, done)
                        done += len(wanted)
                    at += len(piece)
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
        """Hash what was copied, and check it array by array."""
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
        """Read each file back in the writers' wake, in order, and hash it."""
        buffer = memoryview(bytearray(PIECE))
        for number, shard in enumerate(self._shards):
            state = hashlib.sha256(shard.head)
            for place, stream in enumerate(shard.streams):
                done = 0
                while done < stream.nbytes:
                    ready = self._wait(number, place, done)
                    while done < ready:
                        at, wanted = self._begins[number][place] + done, min(PIECE, ready - done)
                        read = os.preadv(self._files[number], [buffer[:wanted]], at)
                        if not read:
                            raise StorageError(
                                f"{shard.path} is shorter than what was written to it",
                                "another process writes there: choose another --out, or repeat when it has ended",
                            )
                        state.update(buffer[:read])
                        done += read
            self._digests.append(state.hexdigest())

    def _wait(self, number: int, place: int, done: int) -> int:
        """Return how many bytes of a tensor are written, once they are more than `done`."""
        with self._turn:
            while self._error is None and self._written[number][place] <= done:
                self._turn.wait()
            if self._error is not None:
                raise _StoppedError
            return self._written[number][place]

    def _flush(self) -> None:
        """Have the system write to disk what is there, again and again."""
        going = True
        while going:
            with self._turn:
                while self._error is None and self._writers and sum(self._dirty) < FLUSH_BYTES:
                    self._turn.wait()
                if self._error is not None:
                    raise _StoppedError
                going = bool(self._writers)
                numbers = [number for number, dirty in enumerate(self._dirty) if dirty]
                self._dirty = [0] * len(self._files)
            for number in numbers:
                os.fsync(self._files[number])

    def _write(self, number: int, place: int, data: memoryview, done: int) -> None:
        """Write bytes of a tensor after the `done` that are there, and tell the others."""
        self._put(number, data, self._begins[number][place] + done)
        with self._turn:
            if self._error is not None:
                raise _StoppedError
            self._written[number][place] += len(data)
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


def _set_aside(file: int, nbytes: int) -> None:
    """Have the blocks of a file there, where the system can: writing is several times as fast then.

    Raises:
        OSError: the disk is full.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file, 0, nbytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # what file systems without it say
            raise
