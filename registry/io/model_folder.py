"""Model folders written atomically, as a stream: safetensors shards tensor by tensor, every file with its digest.

A folder is built beside its path under a hidden name, flushed to disk, and renamed; a folder that it replaces is moved
aside first and deleted last. A crash leaves hidden folders, which the next command with the same output restores or
removes. The hidden folder is locked while it is written, so that two processes never write one folder at once.
"""

import errno
import hashlib
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from registry.errors import CheckpointError, NotFoundError, OutputError, StorageError
from registry.io.disk import is_at, try_lock
from registry.io.safetensors_file import Stream
from registry.io.shard_writer import Shard, write_shards
from registry.io.untrusted import read_json
from registry.progress import Advance
from store.arrays import flush

SHARD_BYTES = 5 * 10**9
ONE_FILE_BYTES = 10**9
INDEX = "model.safetensors.index.json"
MARKER = "composition.json"  # marks a folder as written by this program, which never deletes any other
SIGNATURE, BUNDLE = f"{MARKER}.sig", "model.sig"  # signatures of SSH and of OpenSSF Model Signing
BOM = "bom.cdx.json"  # the bill of materials
BOM_SIGNATURE = f"{BOM}.sig"  # that of SSH
SIGNATURES = (SIGNATURE, BUNDLE, BOM_SIGNATURE)
UNLISTED = (BOM, *SIGNATURES)  # the files that composition.json does not list


@contextmanager
def fresh_folder(out: Path, *, replace: bool | None, nbytes: int) -> Iterator[Path]:
    """Yield a hidden folder to write into; it becomes `out` when the context ends, and is deleted if that raises.

    Args:
        out: an empty folder may exist there (OutputError: it may not be replaced, or another process is writing it).
        replace: replace an existing composed folder; None if the command never replaces one.
        nbytes: bytes that will be written, at least; checked against the free space (StorageError: too little).
    """
    out = out.absolute()
    hidden = out.with_name(f".{out.name}.partial")
    hint = "free some space, or choose another --out"
    try:
        absent = [folder for folder in out.parents if not folder.exists()]
        out.parent.mkdir(parents=True, exist_ok=True)
        for folder in absent:
            flush(folder.parent)
        with _claimed(hidden, out):
            if (old := _old(out)).exists():  # a crash interrupted its replacement
                _remove(old) if out.exists() else old.rename(out)
            check_output(out, replace=replace)
            if (free := shutil.disk_usage(out.parent).free) < nbytes:
                raise StorageError(f"{out} needs {nbytes:,} bytes, its disk has {free:,} free", hint)
            for leftover in hidden.iterdir():  # of a crash
                _remove(leftover)
            yield hidden
            for path in (*hidden.iterdir(), hidden):
                flush(path)
            _swap(hidden, out)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise StorageError(
            f"{out} cannot be written: {error.strerror or error}", hint if full else "choose another --out"
        ) from error


def check_output(out: Path, *, replace: bool | None) -> None:
    """Raise OutputError if `out` is a file, or holds something that may not be replaced (as in `fresh_folder`)."""
    if out.is_symlink():
        raise OutputError(
            f"{out} is a symbolic link, and its target is not replaced",
            f"name the folder itself: --out {shlex.quote(str(out.resolve()))}",
        )
    try:
        names = {path.name for path in out.iterdir()}  # read once: another process may be replacing it
    except FileNotFoundError:
        check_creatable(out)
        return
    except NotADirectoryError:
        what = "exists and is not a folder" if out.exists() else "would be below a file"
        raise OutputError(f"{out} {what}", "choose another --out") from None
    if not names:
        return
    if not replace:
        force = ", or replace that composition: --force" if replace is False and MARKER in names else ""
        raise OutputError(f"{out} exists and is not empty", f"choose another --out{force}")
    if MARKER not in names:
        raise OutputError(not_composed(out), "choose another --out")


def check_file(out: Path, *, replace: bool) -> None:
    """Raise OutputError if a file cannot be written: it exists and `replace` is False, or it has no folder."""
    if out.is_dir() or (not replace and (out.exists() or out.is_symlink())):
        raise OutputError(
            f"{out} exists", "choose another --out" + ("" if out.is_dir() else ", or replace it: --force")
        )
    if not out.absolute().parent.is_dir():
        raise OutputError(f"{out.absolute().parent} is not a folder", "create it, or choose another --out")


def check_outside(out: Path, folder: Path) -> None:
    """Raise OutputError if a file would be in a composed folder, where nothing else belongs."""
    if out.resolve().is_relative_to(folder.resolve()):
        raise OutputError(f"{out} is in {folder}, which holds no file but the composition's", "choose another --out")


def not_composed(place: object) -> str:
    """Return the message that a folder or prefix holds something of others."""
    return f"{place} is not empty and has no {MARKER}, so it was not composed by this program and is not deleted"


def check_creatable(out: Path) -> None:
    """Raise OutputError if a folder that does not exist cannot be made."""
    above = next(folder for folder in out.absolute().parents if folder.exists())
    if not above.is_dir():
        raise OutputError(f"{above} is a file", "choose another --out")
    if not out.exists() and not _can_be_written(above):
        raise OutputError(f"{out} cannot be made: {above} cannot be written to", "choose another --out")


def _can_be_written(folder: Path) -> bool:
    """Tell whether something can be made in a folder; one without a disk behind it, such as /proc, is tried."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    if os.statvfs(folder).f_blocks:
        return True
    try:
        with tempfile.TemporaryDirectory(dir=folder):
            return True
    except OSError:
        return False


def check_apart(out: Path, folder: Path, why: str) -> None:
    """Raise OutputError if a folder to write, and one that must not change because of `why`, contain one another."""
    if out.resolve().is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(out.resolve()):
        raise OutputError(f"{out} and {folder} contain one another, and {why}", "choose another --out")


def require_composed(folder: Path) -> None:
    """Raise CheckpointError unless a folder is there and was composed by this program."""
    hint = "name a composed folder: reg compose --experts … --out DIR"
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder", hint)
    if not (folder / MARKER).is_file():
        raise CheckpointError(f"{folder} has no {MARKER}, so it was not composed by this program", hint)


def composed_of(folder: Path) -> dict[str, str]:
    """Return the content digests of a composed folder's members by name; empty for any other folder."""
    try:
        members = read_json(folder / MARKER)["members"]
        return {str(member["name"]): str(member["digest"]) for member in members}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write_weights(
    folder: Path,
    streams: Iterable[Stream],
    advance: Advance,
    write: Callable[[Sequence[Shard], Advance], list[str]] = write_shards,
) -> dict[str, str]:
    """Write tensors in one file, or shards with an index; return file name → tree digest, and SHA-256 of the index."""
    shards = layout(folder, streams)
    digests = dict(zip((shard.path.name for shard in shards), write(shards, advance), strict=True))
    return digests | write_files(folder, index_file(shards))


def index_file(shards: Sequence[Shard]) -> dict[str, bytes]:
    """Return the index of several shards as a file name and its content; nothing for one file."""
    if len(shards) == 1:
        return {}
    weight_map = {stream.name: shard.path.name for shard in shards for stream in shard.streams}
    index = {
        "metadata": {"total_size": sum(shard.nbytes for shard in shards)},
        "weight_map": dict(sorted(weight_map.items())),
    }
    return {INDEX: json_file(index)}


def write_files(folder: Path, files: Mapping[str, bytes]) -> dict[str, str]:
    """Write small files and return file name → SHA-256."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def json_file(document: object) -> bytes:
    """Return a document as a JSON file: sorted keys, indented, one newline at the end."""
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def layout(folder: Path, streams: Iterable[Stream]) -> list[Shard]:
    """Distribute tensors over files.

    A model of at most `ONE_FILE_BYTES` is one file, as is usual, and is rewritten in a second. In a larger one, tensors
    of different parts (experts, head maps, routers, trunk) do not share a file, so that a recomposition can reuse the
    files that do not change; no file has more than `SHARD_BYTES` unless one tensor does.
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


@contextmanager
def _claimed(hidden: Path, out: Path) -> Iterator[None]:
    """Create the hidden folder if it is absent, and lock it; remove it if the context raises."""
    while True:
        hidden.mkdir(exist_ok=True)
        try:
            descriptor = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:  # its process has just ended
            continue
        try:
            if not try_lock(descriptor, required=False):
                raise OutputError(
                    f"{out} is being written by another process", "repeat when it has ended, or choose another --out"
                )
            if is_at(descriptor, hidden):
                try:
                    yield
                except BaseException:
                    if is_at(descriptor, hidden):
                        _remove(hidden)
                    raise
                return
        finally:
            os.close(descriptor)


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


def signable(path: str | os.PathLike[str]) -> Path:
    """Return the composed folder, or the file that may be a receipt; a `composition.json` stands for its folder.

    (NotFoundError: there is no such path; errors of `require_composed`.)
    """
    path = Path(path)
    path = path.parent if path.name == MARKER and path.is_file() else path
    if path.is_dir():
        require_composed(path)
    elif not path.is_file():
        raise NotFoundError(f"{path} does not exist", "name a composed folder, or a receipt of reg opt-out --receipt")
    return path
