"""Copying of all arrays of a registry to another place: a folder, or a bucket."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from registry.errors import ConflictError, DamagedError, InvalidInputError, NotFoundError
from registry.home import Home
from registry.progress import Progress, silent
from registry.workspace import PathLike
from store.arrays import ArrayStore
from store.lock import exclusive


@dataclass(frozen=True)
class ArrayCopy:
    """The result: arrays written (of `nbytes`, uncompressed) and found intact, and a line for each that is damaged."""

    source: str  # where they were, and still are
    target: str  # where they are now too
    copied: int  # number of arrays that were written and read back
    kept: int  # number of arrays that were there already, intact
    nbytes: int
    problems: tuple[str, ...]  # arrays that are damaged and were not copied; empty if none


def copy_arrays(
    source: PathLike,
    target: PathLike,
    *,
    home: PathLike | None = None,
    database: str | None = None,
    progress: Progress = silent,
) -> ArrayCopy:
    """Copy all arrays and the id of their catalog from one place to another; both places keep them.

    Every array is checked against its digest where it is read, and read back where it is written. If it is interrupted,
    repeating it goes on: what is there and intact is not written again. If the arrays at either place are those of the
    registry at `home` (as in `Registry`), its writers wait (InvalidInputError: both places are the same; NotFoundError:
    there are no arrays; ConflictError: the target holds another catalog's; StorageError: a place refuses).
    """
    first, second = Home.locate(home, database, source), Home.locate(home, database, target)
    from_store, to_store = first.open_arrays(), second.open_arrays()
    if from_store.place == to_store.place:
        raise InvalidInputError(f"the arrays are at {from_store.place} already", "name another place to copy them to")
    current = Home.locate(home, database).arrays_place
    is_current = current in (from_store.place, to_store.place) and first.path.is_dir()
    with exclusive(first.lock, "copying arrays") if is_current else nullcontext():
        return _copy(from_store, to_store, progress)


def _copy(source: ArrayStore, target: ArrayStore, progress: Progress) -> ArrayCopy:
    digests, owner = list(source.digests()), source.owner()
    if not digests:
        raise NotFoundError(f"there are no arrays below {source.place}", "reg config shows where a registry's are")
    other = target.owner()
    if other != owner and (other is not None or next(target.digests(), None) is not None):
        known = "" if other is None else f" (its id is {other})"
        raise ConflictError(
            f"the arrays below {target.place} belong to another catalog{known}", "name an empty folder or prefix"
        )
    if owner is not None and other is None:
        target.set_owner(owner)
    copied, kept, nbytes, problems = 0, 0, 0, list[str]()
    with (
        progress("copying", len(digests), "array") as advance,
        ThreadPoolExecutor(max(source.writers, target.writers), thread_name_prefix="copying") as pool,
    ):
        for size, problem in pool.map(partial(_copy_one, source, target), digests):
            if problem is not None:
                problems.append(problem)
            elif size is None:
                kept += 1
            else:
                copied, nbytes = copied + 1, nbytes + size
            advance(1)
    return ArrayCopy(source.place, target.place, copied, kept, nbytes, tuple(sorted(problems)))


def _copy_one(source: ArrayStore, target: ArrayStore, digest: str) -> tuple[int | None, str | None]:
    """Copy an array; return its size, or None if it was there, and the problem if it cannot be copied."""
    if target.is_intact(digest):
        return None, None
    try:
        array = source.open(digest, cached=False)
        target.put(array, compress=source.is_compressed(digest), digest=digest)
    except (DamagedError, NotFoundError) as error:
        target.delete(digest)
        return None, str(error)
    return array.nbytes, None
