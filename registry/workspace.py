"""An open registry: its home, catalog, arrays and progress, and the operations that all packages share."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from registry.distributed import Cluster
from registry.errors import ConflictError, DamagedError, NotFoundError, RegError, StorageError
from registry.home import Home
from registry.names.resolve import resolve
from registry.progress import Progress, remark
from store.actor import actor
from store.arrays import ArraySource, ArrayStore
from store.catalog import ArrayLink, Catalog, VersionRecord
from store.catalog.records import Kind, State, spoken
from store.digest import json_digest
from store.ownership import check_owner, check_unowned
from store.webhook import LATE, Webhook

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Workspace:
    """An open registry."""

    home: Home  # its folder
    catalog: Catalog  # versions, compositions and the log
    arrays: ArrayStore  # their weights and statistics
    progress: Progress  # receives the progress of long steps
    made: tuple[Path, ...] = ()  # folders that were made for the home, the innermost first
    cluster: Cluster | None = None  # nodes that long steps run on; None to run them in this process
    webhook: Webhook | None = None  # is told of what was registered, composed and opted out

    @classmethod
    def open(
        cls, home: Home, progress: Progress, create: bool | Literal["when written to"], cluster: Cluster | None = None
    ) -> "Workspace":
        """Open the registry of a home (arguments as `Registry`).

        (NotFoundError: there is none, and `create` is False; InvalidInputError: REG_ACTOR is no name, or REG_WEBHOOK no
        URL to post to; StorageError: the home cannot be created, or the arrays cannot be reached.)
        """
        actor()  # a name that the log cannot hold is refused before any work
        webhook = Webhook.configured()  # and so is this
        home.check(create=bool(create))
        made = tuple(path for path in (home.path, *home.path.parents) if not path.exists())
        try:
            home.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"the registry's home {home.path} cannot be created: {error.strerror}",
                "name another one with --home",
            ) from error
        store = home.open_arrays()
        unowned, at_once = partial(check_unowned, store), create != "when written to"
        catalog = Catalog(home.database, home.lock, unowned, at_once=at_once)
        return cls(home, catalog, store, progress, made, cluster, webhook)

    def close(self) -> None:
        """Release the database's connections; leave no empty folder of a registry that was not created."""
        self.catalog.close()
        if not self.catalog.exists:
            for folder in (self.home.merged, self.home.partial, self.home.work, *self.made):
                with suppress(OSError):  # absent, or not empty: another process may use it
                    folder.rmdir()

    def tell(self, action: str, *subjects: str) -> None:
        """Post the latest event of an action, for each subject, to the webhook if there is one; failures are remarks.

        Called when all is done and no lock is held. When one is too late, the others are not tried.
        """
        if self.webhook is None:
            return
        for number, subject in enumerate(subjects):
            try:
                events = [one for one in self.catalog.events(subject) if (one.action, one.subject) == (action, subject)]
                failed = self.webhook.post(self.catalog.id, events[0]) if events else "the log does not have it"
            except RegError as error:
                failed = error.message
            missed = ", ".join(subjects[number:] if failed == LATE else (subject,))
            if failed:
                remark(self.progress, f"warning: {self.webhook.place} was not told of {action} {missed}: {failed}")
            if failed == LATE:
                return

    def check_owner(self) -> None:
        """Raise ConflictError if the arrays belong to another catalog."""
        check_owner(self.catalog, self.arrays)

    def versions(self, kind: Kind | None = None) -> list[VersionRecord]:
        """Return the active versions, of one kind or of both, by name and number."""
        return self.catalog.versions(kind=kind, states=("active",))

    def resolve(self, ref: str, *, kind: Kind | None = None, states: Sequence[State] = ("active",)) -> VersionRecord:
        """Resolve a reference to a version (arguments and errors as `names.resolve.resolve`)."""
        return resolve(self.catalog, ref, kind=kind, states=states)

    def verified_arrays(self, version: VersionRecord) -> tuple[ArrayLink, ...]:
        """Return the arrays of a version whose rows in the catalog have its digest (DamagedError: they have not)."""
        self.catalog.check_name(version.name)
        links = tuple(self.catalog.arrays_of(version))
        if version.content is not None and content_digest(version.content, links) != version.digest:
            raise DamagedError(
                f"{version.ref}: its rows in the catalog do not have its digest {version.digest[:12]}",
                "reg verify; then restore the catalog from a backup",
            )
        return links

    @contextmanager
    def reading(self, *versions: VersionRecord) -> Iterator[None]:
        """Guard reads of the arrays of `versions` (ConflictError: reading failed as one was purged meanwhile)."""
        try:
            yield
        except (DamagedError, NotFoundError) as error:
            for version in self.catalog.reread(versions):
                if version.state == "purged":  # recorded before the first array is deleted
                    raise ConflictError(
                        f"{version.ref} was opted out meanwhile, at {spoken(str(version.withdrawn_at))}", "reg list"
                    ) from error
            raise

    def is_purged(self, version: VersionRecord) -> bool:
        """Tell whether a version's arrays are deleted, or are being deleted."""
        return self.catalog.reread([version])[0].state == "purged"


def content_digest(content: dict[str, Any], arrays: Sequence[ArrayLink]) -> str:
    """Return the digest of a version, over its content document and the role, name and digest of every array."""
    return json_digest([content, sorted([link.role, link.name, link.digest] for link in arrays)])


def open_array(arrays: ArrayStore, link: ArrayLink, called: str) -> ArraySource:
    """Open an array as blocks, `called` so in messages (DamagedError: its dtype or shape is not as in the catalog)."""
    source = arrays.open(link.digest)
    if (source.dtype, source.shape) != (link.dtype, link.shape):
        raise DamagedError(
            f"{called} {link.name} is {source.dtype} {list(source.shape)}, the catalog says {link.dtype} "
            f"{list(link.shape)}",
            "reg verify",
        )
    return source
