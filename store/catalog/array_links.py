"""The catalog's arrays, and their links to versions and to trained compositions."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import CompoundSelect, Select, delete, select, union
from sqlalchemy.orm import Session

from store.catalog.records import ArrayLink, Role, VersionRecord
from store.catalog.tables import Array, CompositionArray, CompositionMember, Expert, Version, VersionArray, bytewise
from store.catalog.transactions import Transactions, log, read_document
from store.digest import canonical_json
from store.errors import DamagedError

TRAINED: Role = "trained"  # role of the arrays of a composition: the tensors that its training changed


class ArrayLinks(Transactions):
    """The part of the catalog that knows which arrays versions and trained compositions use."""

    def arrays_of(self, version: VersionRecord) -> list[ArrayLink]:
        """Return the arrays of `version`, sorted by role and name; empty once it is purged."""
        query = (
            select(VersionArray.role, VersionArray.name, Array)
            .join(Array, Array.digest == VersionArray.digest)
            .where(VersionArray.version_id == version.id)
            .order_by(bytewise(VersionArray.role), bytewise(VersionArray.name))
        )
        with self._reading() as session:
            return [_link(role, name, row) for role, name, row in session.execute(query)]

    def statistics_named(self, names: Collection[str]) -> dict[int, list[ArrayLink]]:
        """Return the id of each version → those of its arrays of statistics that have one of some names."""
        query = (
            select(VersionArray.version_id, VersionArray.role, VersionArray.name, Array)
            .join(Array, Array.digest == VersionArray.digest)
            .where(VersionArray.role == "statistics", VersionArray.name.in_(names))
        )
        found = defaultdict[int, list[ArrayLink]](list)
        with self._reading() as session:
            for number, role, name, row in session.execute(query):
                found[number].append(_link(role, name, row))
        return dict(found)

    def trained_arrays(self, composition: str) -> list[ArrayLink]:
        """Return the arrays of a trained composition, sorted by name; empty of others, and once a member is purged."""
        query = (
            select(CompositionArray.name, Array)
            .join(Array, Array.digest == CompositionArray.digest)
            .where(CompositionArray.composition_digest == composition)
            .order_by(bytewise(CompositionArray.name))
        )
        with self._reading() as session:
            return [_link(TRAINED, name, row) for name, row in session.execute(query)]

    def trained(self) -> list[str]:
        """Return the digests of the compositions that have trained arrays, sorted."""
        with self._reading() as session:
            return sorted(session.scalars(select(CompositionArray.composition_digest).distinct()))

    def trained_with(self, versions: Sequence[VersionRecord]) -> set[str]:
        """Return the digest of every array of a composition that was made from any of `versions`, and trained."""
        with self._reading() as session:
            return trained_arrays(session, versions)

    def referenced(self) -> set[str]:
        """Return the digest of every array that a version or a trained composition uses."""
        with self._reading() as session:
            return set(session.scalars(used_arrays()))

    def users_of(self, digest: str) -> list[str]:
        """Return the versions (`math@1`), then the compositions (`composition <digest>`) that use an array."""
        versions = (
            select(Expert.name, Version.number)
            .join(Version, Version.expert_id == Expert.id)
            .join(VersionArray, VersionArray.version_id == Version.id)
            .where(VersionArray.digest == digest)
            .group_by(Expert.name, Version.number)
            .order_by(bytewise(Expert.name), Version.number)
        )
        trained = select(CompositionArray.composition_digest).where(CompositionArray.digest == digest).distinct()
        with self._reading() as session:
            return [
                *(f"{name}@{number}" for name, number in session.execute(versions)),
                *(f"composition {composition}" for composition in sorted(session.scalars(trained))),
            ]

    def unreferenced(self) -> list[str]:
        """Return the digest of every array in the catalog that neither a version nor a trained composition uses."""
        query = select(Array.digest).where(~Array.digest.in_(used_arrays())).order_by(bytewise(Array.digest))
        with self._reading() as session:
            return list(session.scalars(query))

    def forget_unreferenced(self, deleted: int, freed: int) -> None:
        """Delete the rows of unused arrays; log the number `deleted` on disk and the bytes `freed`."""
        with self._writing() as session:
            session.execute(delete(Array).where(~Array.digest.in_(used_arrays())))
            log(session, "gc", "arrays", arrays=deleted, bytes=freed)


def used_arrays() -> CompoundSelect[str]:
    """Return the query for the digest of every array in use."""
    return union(select(VersionArray.digest), select(CompositionArray.digest))


def add_arrays(session: Session, links: Iterable[ArrayLink]) -> None:
    """Add rows for those arrays that have none."""
    links = list(links)
    known = set(session.scalars(select(Array.digest).where(Array.digest.in_({link.digest for link in links}))))
    for link in links:
        if link.digest not in known:
            shape = canonical_json(list(link.shape))
            session.add(Array(digest=link.digest, dtype=link.dtype, shape=shape, nbytes=link.nbytes))
            known.add(link.digest)
    session.flush()


def trained_arrays(session: Session, versions: Sequence[VersionRecord]) -> set[str]:
    """Return the digests of the arrays of trained compositions that were made from any of `versions`."""
    query = select(CompositionArray.digest).where(CompositionArray.composition_digest.in_(made_from(versions)))
    return set(session.scalars(query))


def delete_trained_arrays(session: Session, versions: Sequence[VersionRecord]) -> list[str]:
    """Delete the links of trained compositions that were made from any of `versions`; return their digests."""
    affected = CompositionArray.composition_digest.in_(made_from(versions))
    query = select(CompositionArray.composition_digest).where(affected).distinct()
    tainted = sorted(session.scalars(query))
    session.execute(delete(CompositionArray).where(CompositionArray.composition_digest.in_(tainted)))
    return tainted


def made_from(versions: Sequence[VersionRecord]) -> Select[str]:
    """Return the query for the digests of compositions that were made from any of `versions`."""
    return select(CompositionMember.composition_digest).where(
        CompositionMember.version_id.in_([version.id for version in versions])
    )


def _link(role: Role, name: str, row: Array) -> ArrayLink:
    shape = read_document(row.shape, f"the shape of array {row.digest[:12]}")
    if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        raise DamagedError(f"the catalog's shape of array {row.digest[:12]} is invalid", "reg verify")
    return ArrayLink(role, name, row.digest, row.dtype, tuple(shape), row.nbytes)
