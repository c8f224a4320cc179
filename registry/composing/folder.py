"""Writing a model folder as a stream: safetensors shards tensor by tensor, every file hashed, all of it or nothing.

A folder is built beside its place under a hidden name, flushed to disk, and renamed; what it replaces is moved aside
first and deleted last. A crash leaves hidden folders, which the next writing to the same place puts back or removes.
"""

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from registry.checkpoint.documents import read_json
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
        OutputError: `out` stands there already and may not be replaced.
        StorageError: the disk is full or refuses.
    """
    out = out.absolute()
    hidden, old = out.with_name(f".{out.name}.partial"), _old(out)
    if old.exists():  # a crash while `out` was being replaced
        _remove(old) if out.exists() else old.rename(out)
    check_output(out, replace=replace)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(out.parent).free) < nbytes:
            raise StorageError(
                f"{out} needs {nbytes:,} bytes, its disk has {free:,} free",
                "free some space, or choose another --out",
            )
        _remove(hidden)
        hidden.mkdir()
        yield hidden
        for path in (*hidden.iterdir(), hidden):
            flush(path)
        _swap(hidden, out)
    except OSError as error:
        _remove(hidden)
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"{out} cannot be written: {error.strerror or error}", "free some space, or choose another --out"
        ) from error
    except BaseException:
        _remove(hidden)
        raise


def check_output(out: Path, *, replace: bool | None) -> None:
    """Check that a folder can be written at `out` (`replace` as in `fresh_folder`).

    Raises:
        OutputError: there is a file, or a folder that is not empty and not to be replaced.
    """
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir() or out.is_symlink():
        raise OutputError(f"{out} exists and is not a folder", "choose another --out")
    if not any(out.iterdir()):
        return
    if not replace:
        force = ", or replace that composition: --force" if replace is False and (out / MARKER).is_file() else ""
        raise OutputError(f"{out} exists and is not empty", f"choose another --out{force}")
    if not (out / MARKER).is_file():
        raise OutputError(
            f"{out} is not empty and has no {MARKER}, so it was not composed by this program and is not deleted",
            "choose another --out",
        )


def composed_of(folder: Path) -> dict[str, str]:
    """Return member name → content digest of a composed folder; empty for any other."""
    try:
        members = read_json(folder / MARKER)["members"]
        return {str(member["name"]): str(member["digest"]) for member in members}
    except (OSError, ValueError, KeyError, TypeError):
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


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
