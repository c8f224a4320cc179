"""An open registry: where its catalog and its arrays are, and the versions in them."""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from registry.content import intact_arrays
from registry.errors import ConflictError, StorageError
from registry.home import Home
from registry.meanwhile import unless_purged
from registry.names.resolve import ALL_STATES, resolve
from registry.progress import Progress, silent
from store.arrays import ArrayStore
from store.catalog import Catalog, TagCount, VersionRecord
from store.catalog.records import Kind, State
from store.ownership import check_unowned

if TYPE_CHECKING:
    from registry.member import Member

PathLike = str | os.PathLike[str]
Opened = TypeVar("Opened", bound="Handle")


class Handle:
    """What every part of `Registry` stands on (arguments as there)."""

    def __init__(
        self,
        home: PathLike | None = None,
        *,
        database: str | None = None,
        progress: Progress = silent,
        create: bool = True,
    ) -> None:
        self.home = Home.locate(home, database)
        self.home.check(create=create)
        self.progress = progress
        try:
            self.home.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"the registry's home {self.home.path} cannot be created: {error.strerror}",
                "name another one with --home",
            ) from error
        self.arrays = ArrayStore(self.home.arrays)
        self.catalog = Catalog(self.home.database, self.home.lock, partial(check_unowned, self.arrays))

    def __enter__(self: Opened) -> Opened:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the database's connections back."""
        self.catalog.close()

    def versions(
        self,
        *,
        kind: Kind | None = None,
        everything: bool = False,
        tags: Mapping[str, str] | None = None,
        search: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[VersionRecord]:
        """Return active versions by name and number, narrowed by kind, tags and words.

        Args:
            kind: expert or base.
            everything: those opted out too.
            tags: only versions that have all of these.
            search: only versions in whose name, aliases, tags or beginning of the digest each of these words is found.
            limit: versions at most.
            offset: how many of the first are passed over.
        """
        states = ALL_STATES if everything else ("active",)
        return self.catalog.versions(kind=kind, states=states, tags=tags, search=search, limit=limit, offset=offset)

    def count_versions(
        self,
        *,
        kind: Kind | None = None,
        everything: bool = False,
        tags: Mapping[str, str] | None = None,
        search: str | None = None,
    ) -> int:
        """Return how many versions `versions` would give without a limit (arguments as there)."""
        states = ALL_STATES if everything else ("active",)
        return self.catalog.count_versions(kind=kind, states=states, tags=tags, search=search)

    def tag_counts(self, limit: int) -> list[TagCount]:
        """Return the tags of active versions with how many have each, the most frequent first, `limit` at most."""
        return self.catalog.tag_counts(limit)

    def resolve(self, ref: str, *, kind: Kind | None = None, states: Sequence[State] = ("active",)) -> VersionRecord:
        """Return the version that `NAME`, `NAME@NUMBER` or `NAME@ALIAS` stands for (`resolving.resolve`).

        Args:
            ref: any of the three; a bare name is its newest version in one of `states`.
            kind: expert or base; None for either.
            states: those that it may be in.

        Raises:
            NotFoundError: there is no such version.
            ConflictError: it was opted out.
        """
        return resolve(self.catalog, ref, kind=kind, states=states)

    def member(self, version: VersionRecord) -> "Member":
        """Return `version` with its arrays, as compositions and evaluations read it.

        Raises:
            ConflictError: it was purged meanwhile.
            DamagedError: what the catalog says of it is not what was written.
        """
        from registry.member import Member

        with unless_purged(self.catalog, [version]):
            return Member(version, intact_arrays(self.catalog, version), self.arrays)

    def members(self, versions: Iterable[VersionRecord]) -> "list[Member]":
        """Return those of `versions` that were not purged meanwhile, with their arrays."""
        found = []
        for version in versions:
            with suppress(ConflictError):
                found.append(self.member(version))
        return found
