"""Writing a model folder as a stream: safetensors shards tensor by tensor, every file hashed, all of it or nothing.

A folder is built beside its place under a hidden name, flushed to disk, and renamed; what it replaces is moved aside
first and deleted last. A crash leaves hidden folders, which the next writing to the same place puts back or removes.
The hidden folder is locked while it is written, so that two processes never write one folder at once.
"""

import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from registry.dtypes import SAFETENSORS
from registry.errors import OutputError, StorageError
from registry.progress import Advance
from store.arrays import CARRIERS, Block, flush

SHARD_BYTES = 5 * 10**9
MARKER = "composition.json"
"""What tells a folder that this program wrote from any other, which it never deletes."""


@dataclass(frozen=True)
class Stream:
    """A tensor to write: its blocks are asked for when their turn comes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    blocks: Callable[[], Iterable[Block]]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * CARRIERS[self.dtype][1]


@contextmanager
def fresh_folder(out: Path, *, replace: bool | None, nbytes: int) -> Iterator[Path]:
    """Give a hidden folder to write into; when the context ends well it becomes `out`, otherwise nothing remains.

    Args:
        out: where the folder shall stand; it may exist if it is empty.
        replace: an existing composed folder may be replaced; None where the command never replaces one.
        nbytes: what will be written, at least; checked against the free space.

    Raises:
        OutputError: `out` stands there already and may not be replaced, or another process is writing it.
        StorageError: the disk is full or refuses.
    """
    out = out.absolute()
    hidden = out.with_name(f".{out.name}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with _claimed(hidden, out):
            _recover(out)
            check_output(out, replace=replace)
            if (free := shutil.disk_usage(out.parent).free) < nbytes:
                raise StorageError(
                    f"{out} needs {nbytes:,} bytes, its disk has {free:,} free",
                    "free some space, or choose another --out",
                )
            for left in hidden.iterdir():  # by a crash
                _remove(left)
            yield hidden
            for path in (*hidden.iterdir(), hidden):
                flush(path)
            _swap(hidden, out)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"{out} cannot be written: {error.strerror or error}", "free some space, or choose another --out"
        ) from error


def check_output(out: Path, *, replace: bool | None) -> None:
    """Check that a folder can be written at `out` (`replace` as in `fresh_folder`).

    Raises:
        OutputError: there is a file, or a folder that is not empty and not to be replaced.
    """
    if out.is_symlink():
        raise OutputError(f"{out} exists and is not a folder", "choose another --out")
    try:
        names = {path.name for path in out.iterdir()}  # read once: another process may be replacing it
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise OutputError(f"{out} exists and is not a folder", "choose another --out") from None
    if not names:
        return
    if not replace:
        force = ", or replace that composition: --force" if replace is False and MARKER in names else ""
        raise OutputError(f"{out} exists and is not empty", f"choose another --out{force}")
    if MARKER not in names:
        raise OutputError(
            f"{out} is not empty and has no {MARKER}, so it was not composed by this program and is not deleted",
            "choose another --out",
        )


def composed_of(folder: Path) -> dict[str, str]:
    """Return member name → content digest of a composed folder; empty for any other."""
    try:
        members = json.loads((folder / MARKER).read_bytes())["members"]
        return {str(member["name"]): str(member["digest"]) for member in members}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def write_weights(folder: Path, streams: Iterable[Stream], advance: Advance) -> dict[str, str]:
    """Write all tensors as safetensors, in one file or in shards with an index, and return file name → SHA-256."""
    shards = _shards(streams)
    if len(shards) == 1:
        return {"model.safetensors": write_shard(folder / "model.safetensors", shards[0], advance)}
    digests, weight_map = {}, {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        digests[name] = write_shard(folder / name, shard, advance)
        weight_map.update({stream.name: name for stream in shard})
    total = sum(stream.nbytes for shard in shards for stream in shard)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return digests | write_files(folder, {"model.safetensors.index.json": json_file(index)})


def write_files(folder: Path, files: Mapping[str, bytes]) -> dict[str, str]:
    """Write small files and return file name → SHA-256."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def json_file(document: object) -> bytes:
    """Return a document as a file of JSON: sorted keys, indented, one newline at the end."""
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _shards(streams: Iterable[Stream]) -> list[list[Stream]]:
    shards: list[list[Stream]] = [[]]
    size = 0
    for stream in streams:
        if shards[-1] and size + stream.nbytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(stream)
        size += stream.nbytes
    return shards


def write_shard(path: Path, streams: list[Stream], advance: Advance) -> str:
    """Write one safetensors file: 8 bytes for the length of the header, the header (JSON), the tensors back to back."""
    # Wider elements first, so that every tensor begins at a multiple of its element's size.
    streams = sorted(streams, key=lambda stream: (-CARRIERS[stream.dtype][1], stream.name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for stream in streams:
        offsets = [end, end + stream.nbytes]
        header[stream.name] = {
            "dtype": SAFETENSORS[stream.dtype],
            "shape": list(stream.shape),
            "data_offsets": offsets,
        }
        end += stream.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    state = hashlib.sha256()
    with path.open("wb") as file:
        for part in (len(text).to_bytes(8, "little"), text):
            file.write(part)
            state.update(part)
        for stream in streams:
            written = 0
            for block in stream.blocks():
                data = block.data.cast("B")
                file.write(data)
                state.update(data)
                written += block.nbytes
                advance(block.nbytes)
            if written != stream.nbytes:
                raise StorageError(f"tensor {stream.name} came to {written:,} bytes, {stream.nbytes:,} were expected")
    return state.hexdigest()


@contextmanager
def _claimed(hidden: Path, out: Path) -> Iterator[None]:
    """Hold the hidden folder, made where it is absent, against every other process; where the context fails, remove it.

    The system frees what a dead process held.

    Raises:
        OutputError: another process holds it.
    """
    while True:
        hidden.mkdir(exist_ok=True)
        try:
            descriptor = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:  # whoever held it has just ended
            continue
        try:
            if not _locked(descriptor):
                raise OutputError(
                    f"{out} is being written by another process", "repeat when it has ended, or choose another --out"
                )
            if _is_at(descriptor, hidden):
                try:
                    yield
                except BaseException:
                    if _is_at(descriptor, hidden):
                        _remove(hidden)
                    raise
                return
        finally:
            os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Lock an open folder; where its file system knows no locks, go without. Tell whether nobody else holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _recover(out: Path) -> None:
    """Put back what a crash left aside while `out` was being replaced, or finish that."""
    old = _old(out)
    if old.exists():
        _remove(old) if out.exists() else old.rename(out)


def _swap(hidden: Path, out: Path) -> None:
    if out.exists() and any(out.iterdir()):
        out.rename(_old(out))
        hidden.rename(out)
        _remove(_old(out))
    else:
        hidden.replace(out)
    flush(out.parent)


def _old(out: Path) -> Path:
    return out.with_name(f".{out.name}.old")


def _remove(path: Path) -> None:
    """Remove a file or folder, which another process may be removing too."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
    while path.is_dir():
        with suppress(FileNotFoundError):
            shutil.rmtree(path)
