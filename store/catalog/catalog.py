"""The catalog: every method is one transaction and returns detached records."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack, cast

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from store.catalog import integrity as seals
from store.catalog import schema
from store.catalog.array_links import ArrayLinks, add_arrays, delete_trained_arrays, trained_arrays, used_arrays
from store.catalog.compositions import Compositions
from store.catalog.engine import make_engine, place_of
from store.catalog.events import Events
from store.catalog.files import Files
from store.catalog.locks import locks_of
from store.catalog.records import KIND_WORDS, Kind, NewVersion, State, StatisticsRecord, TagCount, VersionRecord
from store.catalog.search import Filters, conditions
from store.catalog.tables import (
    Alias,
    Expert,
    Identity,
    ProtectedAlias,
    Statistics,
    Tag,
    Version,
    VersionArray,
    bytewise,
)
from store.catalog.transactions import log, now, read_document, repeating
from store.digest import canonical_json
from store.errors import ConflictError
from store.object_store import is_url


@repeating
class Catalog(Compositions, ArrayLinks, Events, Files, seals.Checks):
    """Names, versions, aliases, tags, statistics, compositions and the event log of one registry.

    Rows are added, and their state changes; no version or event is ever deleted. Each writing method writes its own
    line of the log in the same transaction.
    """

    def __init__(
        self, url: str, lock: Path, before_creating: Callable[[str], None] = lambda _: None, *, at_once: bool = True
    ) -> None:
        """Open the catalog at `url` (any SQLAlchemy URL), creating it where the database is empty.

        `lock` is the file of the registry's lock, where the database has no locks of its own. `before_creating` is
        called with the URL before a catalog is created, and raises an error to prevent it. With `at_once` that is now,
        else before the first write; a writer that holds the lock calls `create` before.

        (SchemaError: its schema is older or newer than this program; InvalidInputError: `url` is no database URL.)
        """
        self.engine = self._database = make_engine(url)
        self._locks, self._before_creating = locks_of(self._database, lock), before_creating
        try:
            if schema.check(self._database):
                return
            if at_once:
                self._create()
            else:
                before_creating(self.place)
                self.engine = schema.empty_catalog()
        except BaseException:
            self._database.dispose()
            raise

    @property
    def exists(self) -> bool:
        """False until the catalog is created."""
        return self.engine is self._database

    def create(self) -> None:
        """Create the catalog if it does not exist yet."""
        if not self.exists:
            self._create()
            self.engine.dispose()
            self.engine = self._database
            self.__dict__.pop("id", None)  # that of the empty one

    def _create(self) -> None:
        with self._locks.hold("creating the catalog"):
            if not schema.check(self._database):  # another process may have created it, and stored arrays
                self._before_creating(self.place)
                schema.upgrade(self._database)

    def lock(self, action: str, *, shared: bool = False) -> AbstractContextManager[None]:
        """Hold the registry's lock; `action` is what is done under it, for the error of others that wait.

        If it is `shared`, others that share it may hold it at the same time, where the database allows that
        (ConflictError: another process holds it for too long; StorageError: the lock cannot be reached).
        """
        return self._locks.hold(action, shared=shared)

    def output_lock(self, place: str) -> AbstractContextManager[None]:
        """Hold the lock of a place that a composition is written to, if it is a URL: machines share it (as `lock`)."""
        return self._locks.hold_output(place) if is_url(place) else nullcontext()

    @property
    def place(self) -> str:
        """The database's URL, with any password hidden."""
        return place_of(self._database)

    @cached_property
    def id(self) -> str:
        """The registry's id: random, created with its catalog."""
        with self._reading() as session:
            return session.scalars(select(Identity.id)).one()

    def close(self) -> None:
        """Close the database's connections."""
        self.engine.dispose()
        self._database.dispose()

    # -- experts and versions ----------------------------------------------------------------------------------------

    def names(self, **filters: Unpack[Filters]) -> list[str]:
        """Return every name ever registered of which a version matches every given filter, sorted."""
        query = select(Expert.name).join(Version.expert).where(*conditions(filters))
        with self._reading() as session:
            return list(session.scalars(query.group_by(Expert.name).order_by(bytewise(Expert.name))))

    def versions(
        self, name: str | None = None, *, limit: int | None = None, offset: int = 0, **filters: Unpack[Filters]
    ) -> list[VersionRecord]:
        """Return the versions, of a name or of all, that match every given filter, sorted by name and number."""
        query = select(Version).join(Version.expert).where(*conditions(filters))
        query = query if name is None else query.where(Expert.name == name)
        query = query.order_by(bytewise(Expert.name), Version.number).limit(limit).offset(offset or None)
        with self._reading() as session:
            return [_version(row) for row in session.scalars(query)]

    def count_versions(self, **filters: Unpack[Filters]) -> int:
        """Return the number of versions that match every given filter."""
        query = select(func.count()).select_from(Version).join(Version.expert).where(*conditions(filters))
        with self._reading() as session:
            return session.scalars(query).one()

    def tag_counts(self, limit: int) -> list[TagCount]:
        """Return the tags of active versions, most frequent first, at most `limit`."""
        count = func.count().label("versions")
        query = select(Tag.key, Tag.value, count).join(Version, Version.id == Tag.version_id)
        query = query.where(Version.state == "active").group_by(Tag.key, Tag.value)
        with self._reading() as session:
            rows = session.execute(query.order_by(count.desc(), bytewise(Tag.key), bytewise(Tag.value)).limit(limit))
            return [TagCount(*row) for row in rows]

    def alias_target(self, name: str, alias: str) -> int | None:
        """Return the version number that `name@alias` points at, or None."""
        query = (
            select(Version.number)
            .join(Alias, Alias.version_id == Version.id)
            .join(Expert, Expert.id == Alias.expert_id)
            .where(Expert.name == name, Alias.name == alias)
        )
        with self._reading() as session:
            return session.scalar(query)

    def add_version(self, new: NewVersion) -> tuple[VersionRecord, bool]:
        """Register a version under the next number of its name, unless an active version has the same content.

        It is returned, with True if it was added (ConflictError: the name belongs to the other kind).
        """
        with self._writing() as session:
            seals.check_name(session, new.name)
            expert = session.scalar(select(Expert).where(Expert.name == new.name))
            if expert is None:
                expert = Expert(name=new.name, kind=new.kind, created_at=now())
                session.add(expert)
                session.flush()
            if expert.kind != new.kind:
                raise ConflictError(
                    f"{new.name} is registered as {KIND_WORDS[expert.kind]}, not as {KIND_WORDS[new.kind]}",
                    "choose another name",
                )
            same = select(Version).where(
                Version.expert_id == expert.id, Version.digest == new.digest, Version.state == "active"
            )
            if (existing := session.scalar(same)) is not None:
                return _version(existing), False
            last = session.scalar(select(func.max(Version.number)).where(Version.expert_id == expert.id))
            version = Version(
                expert_id=expert.id,
                number=(last or 0) + 1,
                digest=new.digest,
                content=canonical_json(new.content),
                parameters=new.parameters,
                state="active",
                created_at=now(),
            )
            session.add(version)
            session.flush()
            add_arrays(session, new.arrays)
            for link in new.arrays:
                session.add(VersionArray(version_id=version.id, role=link.role, name=link.name, digest=link.digest))
            for item in new.statistics:
                session.add(Statistics(version_id=version.id, **vars(item)))
            for key, value in new.tags.items():
                session.add(Tag(version_id=version.id, key=key, value=value))
            ref = f"{new.name}@{version.number}"
            rows = seals.seals_of(session, names={new.name: expert.id}, versions={ref: version.id})
            log(session, f"add-{new.kind}", ref, digest=new.digest, rows=rows)
            session.flush()
            session.refresh(version)
            return _version(version), True

    def set_tags(self, version: VersionRecord, tags: dict[str, str]) -> None:
        """Set tags of an active `version`; its other tags stay (ConflictError: it was withdrawn in the meantime)."""
        with self._writing() as session:
            seals.check_name(session, version.name)
            row = self._active(session, version)
            for key, value in tags.items():
                session.merge(Tag(version_id=row.id, key=key, value=value))
            log(session, "tag", version.ref, rows=seals.seals_of(session, versions={version.ref: row.id}))

    def check_alias(self, name: str, alias: str | None) -> None:
        """Check that `name@alias`, if one is given, may point at a version to come (ConflictError: it is protected)."""
        with self._reading() as session:
            move = f"repeat without --alias, then: reg alias {name}@<number> {alias} --force"
            _check_unprotected(session, name, alias, move)

    def set_alias(
        self, version: VersionRecord, alias: str, *, protect: bool = False, force: bool = False
    ) -> str | None:
        """Point `alias` at an active `version`; return the one it pointed at before, if any (errors as `set_tags`).

        With `protect` it is protected from now on: it moves with `force` alone (ConflictError), and stays protected.
        """
        with self._writing() as session:
            seals.check_name(session, version.name)
            row = self._active(session, version)
            existing, before = session.get(Alias, (row.expert_id, alias)), None
            if existing is not None:
                before = f"{version.name}@{session.get_one(Version, existing.version_id).number}"
            if not force and before != version.ref:
                _check_unprotected(session, version.name, alias, f"reg alias {version.ref} {alias} --force")
            session.merge(Alias(expert_id=row.expert_id, name=alias, version_id=row.id))
            if protect:
                session.flush()  # it refers to the alias
                session.merge(ProtectedAlias(expert_id=row.expert_id, name=alias))
            rows = seals.seals_of(session, names={version.name: row.expert_id})
            did = {"protected": True} if protect else {}
            log(session, "alias", version.ref, alias=alias, before=before, rows=rows, **did)
            return before

    def delete_alias(self, name: str, alias: str, *, force: bool = False) -> None:
        """Delete `name@alias`, if it exists (ConflictError: it is protected, without `force`)."""
        with self._writing() as session:
            if not force:
                _check_unprotected(session, name, alias, f"reg alias {name} {alias} --delete --force")
            query = select(Alias).join(Expert, Expert.id == Alias.expert_id)
            row = session.scalar(query.where(Expert.name == name, Alias.name == alias))
            if row is not None:
                session.delete(row)
                rows = seals.seals_of(session, names={name: row.expert_id})
                log(session, "alias", name, alias=alias, deleted=True, rows=rows)

    # -- opting out --------------------------------------------------------------------------------------------------

    def reread(self, versions: Sequence[VersionRecord]) -> list[VersionRecord]:
        """Return the current records of `versions`, in the same order."""
        with self._reading() as session:
            return [_version(session.get_one(Version, version.id)) for version in versions]

    def check_active(self, versions: Sequence[VersionRecord]) -> None:
        """Check that every version is still active (ConflictError: one was opted out in the meantime)."""
        with self._reading() as session:
            for version in versions:
                self._active(session, version)

    def withdraw(self, versions: Sequence[VersionRecord]) -> None:
        """Mark `versions` withdrawn; versions withdrawn earlier keep their time."""
        with self._writing() as session:
            for version in versions:
                row = session.get_one(Version, version.id)
                if row.state == "active":
                    row.state, row.withdrawn_at = "withdrawn", now()
                    rows = seals.seals_of(session, versions={version.ref: row.id})
                    log(session, "opt-out", version.ref, digest=version.digest, rows=rows)

    def purge(
        self, versions: Sequence[VersionRecord], nbytes: Mapping[str, int] | None = None, together: Sequence[str] = ()
    ) -> None:
        """Delete the rows of `versions` except name, number, digest and times; their arrays become unreferenced.

        Compositions that contain them stay, with their recipes but without their trained arrays; evaluations of those
        compositions, and evaluations that compare with one of the versions, are deleted. The log records which arrays
        are to be deleted, with their size on disk (`nbytes`), which stay, and the versions trained `together` with
        them, so that an interrupted purge can still be accounted for.
        """
        with self._writing() as session:
            if gone := self._delete_evaluations(session, versions):
                log(session, "forget", versions[0].ref, rows=dict.fromkeys(gone, seals.GONE))
            purged: list[tuple[VersionRecord, set[str]]] = []
            for version in versions:
                row = session.get_one(Version, version.id)
                row.parameters = 0
                if row.state == "purged":
                    continue
                own = select(VersionArray.digest).where(VersionArray.version_id == row.id)
                purged.append((version, set(session.scalars(own)) | trained_arrays(session, [version])))
                for table in (VersionArray, Statistics, Tag, Alias):
                    session.execute(delete(table).where(table.version_id == row.id))
                row.state, row.purged_at, row.content = "purged", now(), None
            tainted = delete_trained_arrays(session, [version for version, _ in purged])
            needed = set(session.scalars(used_arrays())) if purged else set()
            for version, digests in purged:
                deleted = {digest: (nbytes or {}).get(digest, 0) for digest in sorted(digests - needed)}
                shared = sorted(digests & needed)
                row = session.get_one(Version, version.id)
                rows = seals.seals_of(session, names={version.name: row.expert_id}, versions={version.ref: row.id})
                rows |= dict(seals.composition_seal(session, digest) for digest in tainted)
                did: dict[str, Any] = {"deleted": deleted, "shared": shared}
                if together:
                    did["trained_together"] = list(together)
                log(session, "purge", version.ref, digest=version.digest, rows=rows, **did)


def _check_unprotected(session: Session, name: str, alias: str | None, hint: str) -> None:
    """Raise ConflictError if `name@alias` is protected."""
    query = select(ProtectedAlias.name).join(Expert, Expert.id == ProtectedAlias.expert_id)
    if session.scalar(query.where(Expert.name == name, ProtectedAlias.name == alias)) is not None:
        raise ConflictError(f"{name}@{alias} is protected", hint)


def _version(row: Version) -> VersionRecord:
    return VersionRecord(
        id=row.id,
        name=row.expert.name,
        kind=cast(Kind, row.expert.kind),
        number=row.number,
        digest=row.digest,
        content=None if row.content is None else read_document(row.content, f"version {row.expert.name}@{row.number}"),
        parameters=row.parameters,
        state=cast(State, row.state),
        created_at=row.created_at,
        withdrawn_at=row.withdrawn_at,
        purged_at=row.purged_at,
        aliases=tuple(alias.name for alias in row.aliases),
        protected=tuple(alias.name for alias in row.aliases if alias.protection is not None),
        tags={tag.key: tag.value for tag in row.tags},
        statistics=tuple(
            StatisticsRecord(s.site, s.tokens, s.saturated, s.calibration_digest, s.calibration_label)
            for s in row.statistics
        ),
    )
