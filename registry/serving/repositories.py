"""Repositories of a registry: its versions and compositions as folders, each written when it is first asked for.

    experts/NAME, bases/NAME    what `reg export` writes; revisions are `main` (the newest version), numbers, aliases
    adapters/NAME               the PEFT folder of an expert that is an adapter, as it came
    mix/A-B                     the composition of A and B

A commit is a digest of the repository's name and of what was written, so that equal content has one commit.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from registry.composition import Recipe
from registry.errors import ConflictError, InvalidInputError, NotFoundError
from registry.io.disk import CHUNK
from registry.io.work_dirs import remove
from registry.names.resolve import resolve
from registry.registry import Registry
from store.catalog import VersionRecord
from store.catalog.records import Kind

MAIN = "main"
MIX = "mix"
LARGE = ".safetensors"
"""Ending of the names of large files, which have a SHA-256 where others have git's object name."""
_KINDS: dict[str, Kind] = {"experts": "expert", "bases": "base", "adapters": "expert"}
_COMMIT = re.compile("[0-9a-f]{40}")
_MOST_MEMBERS = 64  # of a mix, whose name says them


@dataclass(frozen=True)
class ServedFile:
    """A file of a repository, with its size in bytes, the SHA-1 of it as a git object, and of a large file SHA-256."""

    path: Path
    size: int
    sha1: str
    sha256: str | None

    @classmethod
    def of(cls, path: Path) -> "ServedFile":
        """Return a file, which is read."""
        size = path.stat().st_size
        git, whole = _git_hash(size), hashlib.sha256()
        with path.open("rb") as file:
            while data := file.read(CHUNK):
                git.update(data)
                whole.update(data)
        return cls(path, size, git.hexdigest(), whole.hexdigest() if path.name.endswith(LARGE) else None)

    @property
    def pointer(self) -> bytes | None:
        """The object that git holds of a large file: Git LFS's pointer to it; None of a small one."""
        if self.sha256 is None:
            return None
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n".encode()

    @property
    def etag(self) -> str:
        """The SHA-256, or git's name: it changes with the content."""
        return self.sha256 or self.sha1

    @property
    def git_name(self) -> str:
        """The name of the object that git holds."""
        if (pointer := self.pointer) is None:
            return self.sha1
        name = _git_hash(len(pointer))
        name.update(pointer)
        return name.hexdigest()


@dataclass(frozen=True)
class Repository:
    """A repository at one commit.

    Attributes:
        commit: 40 hexadecimal digits.
        files: path in the repository → file.
        made_from: the versions; once one is opted out, the repository is gone.
    """

    name: str
    commit: str
    folder: Path
    files: dict[str, ServedFile]
    made_from: tuple[str, ...]


class Repositories:
    """The repositories of a registry, safe for several threads; each is written once.

    Args:
        folder: where their folders are, of which this is the only user.
        recipe: how mixes are composed.
    """

    def __init__(self, registry: Registry, folder: Path, recipe: Recipe) -> None:
        self._registry, self._folder, self._recipe = registry, folder, recipe
        self._made: dict[tuple[str, str], Repository] = {}
        self._lock = Lock()  # one is written at a time: that takes all cores

    def names(self) -> list[str]:
        """Return the repositories of single versions, by name; mixes are too many."""
        active = self._registry.versions()
        versions = sorted({(version.name, version.kind, self._is_adapter(version)) for version in active})
        return [
            f"{group}/{name}"
            for group, kind in _KINDS.items()
            for name, own, is_adapter in versions
            if own == kind and (group != "adapters" or is_adapter)
        ]

    def find(self, name: str, revision: str = MAIN) -> Repository:
        """Return a repository at a revision or commit, after writing it if it is not there.

        Raises:
            NotFoundError: there is no such repository or revision.
            ConflictError: a version that it is made of was opted out; what was written of it is deleted.
            RegError: it cannot be composed or written.
        """
        group, _, own = name.partition("/")
        try:
            if _COMMIT.fullmatch(revision):
                return self._known(name, revision)
            if group == MIX:
                return self._mix(name, own, revision)
            if group in _KINDS:
                return self._version(name, group, own if revision == MAIN else f"{own}@{revision}")
        except ConflictError:
            self._delete_withdrawn()
            raise
        raise NotFoundError(f"there is no repository {name!r}", f"name {', '.join(_KINDS)} or {MIX}: experts/NAME")

    def _known(self, name: str, commit: str) -> Repository:
        found = self._made.get((name, commit))
        if found is None:
            raise RevisionError(f"{name} has no commit {commit}", f"ask for {MAIN}")
        self._check(found)
        return found

    def _check(self, found: Repository) -> None:
        """Check that no version of a repository was opted out (ConflictError: one was)."""
        for ref in found.made_from:
            resolve(self._registry.catalog, ref)

    def _delete_withdrawn(self) -> None:
        """Delete what was written of versions that were opted out; that it was there is known still."""
        with self._lock:
            for found in self._made.values():
                try:
                    self._check(found)
                except ConflictError:
                    if found.folder.exists():
                        remove(found.folder)

    def _version(self, name: str, group: str, ref: str) -> Repository:
        try:
            version = resolve(self._registry.catalog, ref, kind=_KINDS[group])
        except (NotFoundError, InvalidInputError) as error:
            own, at, _ = ref.partition("@")
            is_there = bool(at and self._registry.catalog.versions(own, kind=_KINDS[group]))
            raise (RevisionError if is_there else NotFoundError)(error.message, error.hint or "") from error
        as_lora = group == "adapters"
        if as_lora and not self._is_adapter(version):
            raise NotFoundError(
                f"{version.ref} was trained in full, it is no adapter", f"ask for experts/{version.name}"
            )
        write = lambda folder: self._registry.export(version.ref, folder, as_lora=as_lora)  # noqa: E731
        return self._written(name, version.digest, [version.ref], write)

    def _mix(self, name: str, members: str, revision: str) -> Repository:
        if revision != MAIN:
            raise RevisionError(f"{name} has no revision {revision!r}", f"ask for {MAIN}, or for a commit of it")
        catalog = self._registry.catalog
        ways = list(_ways(members.split("-"), catalog.names()))
        if len(ways) != 1:
            told = "; or ".join(", ".join(way) for way in ways[:2])
            why = f"may be {told}" if ways else "does not join registered names by '-'"
            raise NotFoundError(f"the mix {members!r} {why}", f"name it {MIX}/A-B, of A and B in reg list")
        for one in ways[0]:
            resolve(catalog, one)  # what was opted out is told as such
        plan = self._registry.plan(ways[0], self._recipe)
        write = lambda folder: self._registry.compose(ways[0], folder, self._recipe)  # noqa: E731
        return self._written(name, plan.digest, [version.ref for version in plan.versions], write)

    def _written(self, name: str, digest: str, made_from: Sequence[str], write: Callable[[Path], object]) -> Repository:
        commit = hashlib.sha256(f"{name} {digest}".encode()).hexdigest()[:40]
        with self._lock:
            known = self._made.get((name, commit))
            if known is None or known.made_from != tuple(made_from):  # the same content, registered again
                folder = self._folder / commit
                if folder.exists():
                    remove(folder)
                write(folder)
                paths = sorted(path for path in folder.rglob("*") if path.is_file())
                files = {path.relative_to(folder).as_posix(): ServedFile.of(path) for path in paths}
                self._made[name, commit] = Repository(name, commit, folder, files, tuple(made_from))
            found = self._made[name, commit]
        self._check(found)  # it may have been opted out while it was written
        return found

    def _is_adapter(self, version: VersionRecord) -> bool:
        return self._registry.member(version).is_adapter


class RevisionError(NotFoundError):
    """The repository has no such revision."""


def _ways(parts: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the ways to read parts, joined by `-`, as different names."""
    known, most = set(names), len(parts)

    def read(start: int, taken: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if start == most:
            yield taken
        for end in range(start + 1, most + 1):
            name = "-".join(parts[start:end])
            if name in known and name not in taken and len(taken) < _MOST_MEMBERS:
                yield from read(end, (*taken, name))

    yield from read(0, ())


def _git_hash(size: int) -> "hashlib._Hash":
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
