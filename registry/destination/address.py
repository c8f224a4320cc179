"""Composed folders by their address, a path or the URL of a bucket: to write one, and to read one."""

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from registry.destination.bucket import BucketDestination
from registry.destination.destination import Destination, FolderDestination
from registry.errors import CheckpointError, DamagedError, StorageError
from registry.home import Home
from registry.io.model_folder import MARKER
from registry.io.tree_digest import PREFIX, TreeHash
from registry.io.untrusted import is_plain, json_object
from registry.io.work_dirs import temporary_folder, working_folder
from registry.progress import Advance, Progress
from registry.workspace import PathLike
from store.bucket import Bucket, url_of
from store.digest import is_digest
from store.object_store import is_url
from store.permissions import writing

MARKER_BYTES = 64 << 20  # the largest `composition.json` that is read from a bucket


def destination_of(address: PathLike) -> Destination:
    """Return the destination at a path, or at a URL, which is given as a text (errors as `Bucket`)."""
    url = url_of(address)
    return FolderDestination(Path(address)) if url is None else BucketDestination(url)


def may_exist(address: str) -> bool:
    """Tell whether a composed folder may be at a recorded address: a bucket is not asked."""
    return is_url(address) or Path(address).is_dir()


@contextmanager
def fetched(url: str, home: Home, progress: Progress) -> Iterator[Path]:
    """Yield a local copy of the composed folder at a URL, checked against its digests; it is deleted afterwards.

    The copy is below the registry's home, so that an opt-out finds it if this process dies; without a home it is in the
    system's temporary folder.

    Raises:
        CheckpointError: there is no composition, or an object of it is missing.
        DamagedError: an object is not what was composed.
        StorageError: the bucket cannot be read, or the disk has too little space.
    """
    bucket = Bucket(url)
    sizes, below = bucket.listed()
    if MARKER not in sizes:
        what = "holds a composition that is not finished" if sizes else "holds no composition"
        raise CheckpointError(f"{url} {what}: there is no {MARKER}", f"compose it: reg compose --experts … --out {url}")
    if below:
        raise CheckpointError(f"{url} holds other objects, below {below[0]}/", "name the prefix of one composition")
    if sizes[MARKER] > MARKER_BYTES:
        raise CheckpointError(f"{url}/{MARKER} has {sizes[MARKER]:,} bytes", "name the prefix of a composition")
    marker = bucket.read(MARKER) or b""
    document = json_object(marker, f"{url}/{MARKER}")
    digests = _digests(document, f"{url}/{MARKER}")
    if missing := sorted(digests.keys() - sizes.keys()):
        raise CheckpointError(f"{url}/{missing[0]} is missing", f"compose it again: … --out {url} --force")
    with temporary_folder() if not home.path.is_dir() else working_folder(home.work, _members(document)) as work:
        folder = work / (url.rpartition("/")[2] or "composed")
        total = sum(sizes.values())
        if (free := shutil.disk_usage(work).free) < total:
            raise StorageError(f"{url} has {total:,} bytes, the disk of {work} has {free:,} free", "free some space")
        with progress("fetching", total, "B") as advance, writing(folder):
            folder.mkdir()
            (folder / MARKER).write_bytes(marker)
            for name in sorted(sizes.keys() - {MARKER}):
                _fetch(bucket, name, sizes[name], folder / name, digests.get(name), advance)
        yield folder


@contextmanager
def readable(address: PathLike, home: Home, progress: Progress) -> Iterator[Path]:
    """Yield the path of a folder, or of the local copy of one in a bucket (arguments and errors as `fetched`)."""
    url = url_of(address)
    with nullcontext(Path(address)) if url is None else fetched(url, home, progress) as folder:
        yield folder


def _digests(document: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return file name → digest of a `composition.json`, whose other content is checked where it is used."""
    files = document.get("files")
    if not isinstance(files, dict) or not all(is_plain(name) for name in files):
        raise CheckpointError(f"{where} lists no files, or one in another folder", "name the prefix of a composition")
    return {name: str(digest) for name, digest in files.items()}


def _members(document: Mapping[str, Any]) -> set[str]:
    """Return the content digests that a `composition.json` names, as far as it can be read."""
    members = document.get("members")
    named = [*(members if isinstance(members, list) else []), document.get("base")]
    return {one["digest"] for one in named if isinstance(one, dict) and is_digest(one.get("digest"))}


def _fetch(bucket: Bucket, name: str, size: int, path: Path, digest: str | None, advance: Advance) -> None:
    """Write one object to a file, and compare its digest, if one is known."""
    state = TreeHash(path, size) if digest is not None and digest.startswith(PREFIX) else hashlib.sha256()
    with path.open("wb") as file:
        try:
            for part in bucket.ranges(name, size):
                data = memoryview(part)
                file.write(data)
                state.update(data)
                advance(len(data))
            found = state.hexdigest()
        except CheckpointError:  # it is no longer a safetensors file
            found = ""
    if digest is not None and found != digest:
        raise DamagedError(
            f"{bucket.url}/{name} was changed since it was written",
            f"compose it again: reg compose --experts … --out {bucket.url} --force",
        )
