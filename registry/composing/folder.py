"""Writing a model folder as a stream: safetensors shards tensor by tensor, every file hashed, all of it or nothing.

A folder is built beside its place under a hidden name, flushed to disk, and renamed; what it replaces is moved aside
first and deleted last. A crash leaves hidden folders, which the next writing to the same place puts back or removes.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from registry.composing.earlier import Earlier
from registry.composing.shards import Shard, Stream, write_shards
from registry.errors import OutputError, StorageError
from registry.progress import Advance
from store.arrays import flush

SHARD_BYTES = 5 * 10**9
ONE_FILE_BYTES = 10**9
MARKER = "composition.json"
"""What tells a folder that this program wrote from any other, which it never deletes."""


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
        members = json.loads((folder / MARKER).read_bytes())["members"]
        return {str(member["name"]): str(member["digest"]) for member in members}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def write_weights(
    folder: Path, streams: Iterable[Stream], advance: Advance, earlier: Earlier | None = None
) -> dict[str, str]:
    """Write all tensors as safetensors, in one file or in shards with an index, and return file name → SHA-256.

    Args:
        folder: where.
        streams: the tensors.
        advance: told of the bytes written or taken over.
        earlier: the folder that this one replaces; files in which nothing changes are linked to it.
    """
    shards, digests = layout(folder, streams), dict[str, str]()
    if len(shards) == 1:  # that one has the routers too
        earlier = None
    for shard in shards:
        if earlier is not None and (digest := earlier.take(shard)) is not None:
            digests[shard.path.name] = digest
            advance(shard.nbytes)
    fresh = [shard for shard in shards if shard.path.name not in digests]
    digests |= dict(zip((shard.path.name for shard in fresh), write_shards(fresh, advance), strict=True))
    if earlier is not None:
        earlier.note(shards, [digests[shard.path.name] for shard in shards])
    if len(shards) == 1:
        return digests
    weight_map = {stream.name: shard.path.name for shard in shards for stream in shard.streams}
    index = {
        "metadata": {"total_size": sum(shard.nbytes for shard in shards)},
        "weight_map": dict(sorted(weight_map.items())),
    }
    return digests | write_files(folder, {"model.safetensors.index.json": json_file(index)})


def write_files(folder: Path, files: Mapping[str, bytes]) -> dict[str, str]:
    """Write small files and return file name → SHA-256."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def json_file(document: object) -> bytes:
    """Return a document as a file of JSON: sorted keys, indented, one newline at the end."""
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def layout(folder: Path, streams: Iterable[Stream]) -> list[Shard]:
    """Return the files that tensors go to.

    A model of at most `ONE_FILE_BYTES` is one file, as people like it, and is written anew in a second. In a larger
    one tensors of different parts (experts, routers, trunk) do not share a file, so that a recomposition can take over
    those files in which nothing changes; no file has more than `SHARD_BYTES` unless one tensor does.
    """
    streams = list(streams)
    parts = sorted({stream.part for stream in streams})
    if sum(stream.nbytes for stream in streams) <= ONE_FILE_BYTES:
        parts = []
    runs = [run for part in parts for run in _runs([s for s in streams if s.part == part])] or _runs(streams)
    names = [f"model-{number:05d}-of-{len(runs):05d}.safetensors" for number in range(1, len(runs) + 1)]
    if len(runs) == 1:
        names = ["model.safetensors"]
    return [Shard(folder / name, tuple(run)) for name, run in zip(names, runs, strict=True)]


def _runs(streams: Iterable[Stream]) -> list[list[Stream]]:
    runs: list[list[Stream]] = [[]]
    size = 0
    for stream in streams:
        if runs[-1] and size + stream.nbytes > SHARD_BYTES:
            runs.append([])
            size = 0
        runs[-1].append(stream)
        size += stream.nbytes
    return runs


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
